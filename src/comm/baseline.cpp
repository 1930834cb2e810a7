#include "comm/baseline.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "comm/mpi_communicator.h"
#include "comm/nccl_factory.h"
#ifdef FLOTILLA_CUDA
#include "comm/nccl_communicator.h"
#endif

namespace flotilla::comm {
namespace {

void through_mpi(const Communicator& communicator, const at::Tensor& from, at::Tensor& to) {
  const auto* mpi = dynamic_cast<const MpiCommunicator*>(&communicator);
  const auto part = static_cast<int64_t>(from.nbytes()) / communicator.world_size();
  FLOTILLA_ASSERT(mpi != nullptr && part <= int64_t{1} << 30);
  check_mpi(MPI_Alltoall(from.const_data_ptr(), static_cast<int>(part), MPI_BYTE,
                         to.mutable_data_ptr(), static_cast<int>(part), MPI_BYTE, mpi->mpi().get()),
            "MPI_Alltoall");
}

// False: the tensors do not go through NCCL here.
#ifdef FLOTILLA_CUDA
bool through_nccl(Communicator& communicator, const at::Tensor& from, at::Tensor& to) {
  auto* nccl = dynamic_cast<NcclCommunicator*>(&communicator);
  if (nccl == nullptr || !from.is_cuda()) return false;
  const at::Tensor parts = from.view({nccl->world_size(), -1});
  const at::Tensor places = to.view({nccl->world_size(), -1});
  std::vector<NcclCommunicator::Transfer> sends, receives;
  for (int peer = 0; peer < nccl->world_size(); ++peer) {
    sends.push_back({parts.select(0, peer), peer});
    receives.push_back({places.select(0, peer), peer});
  }
  constexpr double kTimeoutSeconds = 60;
  nccl->start(sends, receives, "all-to-all", kTimeoutSeconds);
  return true;
}

bool is_nccl(const Communicator& communicator) {
  return dynamic_cast<const NcclCommunicator*>(&communicator) != nullptr;
}
#else
bool through_nccl(Communicator&, const at::Tensor&, at::Tensor&) { return false; }

bool is_nccl(const Communicator&) { return false; }
#endif

}  // namespace

std::optional<std::string> nccl_of(const Communicator& communicator, at::Device device) {
  if (!device.is_cuda() || !is_nccl(communicator)) return std::nullopt;
  return nccl_version();
}

void plain_all_to_all(Communicator& communicator, const at::Tensor& from, at::Tensor& to) {
  FLOTILLA_ASSERT(from.is_contiguous() && to.is_contiguous() && from.nbytes() == to.nbytes());
  if (through_nccl(communicator, from, to)) return;
  if (from.is_cpu()) return through_mpi(communicator, from, to);
  const at::Tensor sent = from.cpu();
  at::Tensor received = at::empty_like(sent);
  through_mpi(communicator, sent, received);
  to.copy_(received);
}

}  // namespace flotilla::comm
