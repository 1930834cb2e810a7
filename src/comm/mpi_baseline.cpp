#include "comm/mpi_baseline.h"

#include "base/error.h"
#include "comm/mpi_communicator.h"

namespace flotilla::comm {

void plain_all_to_all(const Communicator& communicator, const at::Tensor& from, at::Tensor& to) {
  const auto* mpi = dynamic_cast<const MpiCommunicator*>(&communicator);
  FLOTILLA_ASSERT(mpi != nullptr && from.is_contiguous() && to.is_contiguous());
  const auto part = static_cast<int64_t>(from.nbytes()) / communicator.world_size();
  FLOTILLA_ASSERT(part <= int64_t{1} << 30 && from.nbytes() == to.nbytes());
  check_mpi(MPI_Alltoall(from.const_data_ptr(), static_cast<int>(part), MPI_BYTE,
                         to.mutable_data_ptr(), static_cast<int>(part), MPI_BYTE, mpi->mpi().get()),
            "MPI_Alltoall");
}

}  // namespace flotilla::comm
