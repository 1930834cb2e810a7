#include "comm/nccl_communicator.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace flotilla::comm {
namespace {

// Data moves as bytes, so every dtype can.
constexpr ncclDataType_t kBytes = ncclUint8;

void* data_of(const at::Tensor& tensor) { return tensor.mutable_data_ptr(); }

at::ScalarType sum_type(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<MpiCommunicator> host,
                                   std::shared_ptr<NcclComm> nccl, double timeout_s)
    : host_(std::move(host)), nccl_(std::move(nccl)), timeout_s_(timeout_s) {}

bool NcclCommunicator::is_mine(const at::Tensor& tensor) const {
  if (tensor.device().is_cpu()) return false;
  FLOTILLA_ASSERT(tensor.device() == nccl_->device());
  return true;
}

void NcclCommunicator::barrier(std::string_view what, double timeout_s) {
  host_->barrier(what, timeout_s);
}

void NcclCommunicator::meet(std::string_view what, double at_most_s) {
  host_->meet(what, at_most_s);
}

void NcclCommunicator::broadcast(at::Tensor& tensor, int root) {
  if (!is_mine(tensor)) return host_->broadcast(tensor, root);
  if (tensor.numel() == 0) return;
  const at::Tensor whole = tensor.contiguous();
  nccl_->launch({*host_, "broadcast", timeout_s_, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
    check_nccl(
        ncclBroadcast(data_of(whole), data_of(whole), whole.nbytes(), kBytes, root, comm, stream),
        "ncclBroadcast", comm);
  });
  nccl_->finish();
  if (!whole.is_same(tensor) && rank() != root) tensor.copy_(whole);
}

std::string NcclCommunicator::broadcast(std::string_view text, int root) {
  return host_->broadcast(text, root);
}

// [...] -> [N, ...]
at::Tensor NcclCommunicator::all_gather_on_gpu(const at::Tensor& own) {
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), world_size());
  const at::Tensor part = own.contiguous();
  at::Tensor all = at::empty(shape, part.options());
  if (all.numel() == 0) return all;
  nccl_->launch({*host_, "all-gather", timeout_s_, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
    check_nccl(ncclAllGather(data_of(part), data_of(all), part.nbytes(), kBytes, comm, stream),
               "ncclAllGather", comm);
  });
  nccl_->finish();
  return all;
}

at::Tensor NcclCommunicator::all_gather(const at::Tensor& tensor) {
  return is_mine(tensor) ? all_gather_on_gpu(tensor) : host_->all_gather(tensor);
}

std::vector<std::string> NcclCommunicator::all_gather(std::string_view text) {
  return host_->all_gather(text);
}

void NcclCommunicator::all_gather_in_place(at::Tensor& tensor, std::span<const ByteRange> ranges) {
  if (!is_mine(tensor)) return host_->all_gather_in_place(tensor, ranges);
  FLOTILLA_ASSERT(tensor.is_contiguous() && static_cast<int>(ranges.size()) == world_size());
  auto* bytes = static_cast<std::byte*>(data_of(tensor));
  const auto size = static_cast<int64_t>(tensor.nbytes());
  // One broadcast a rank, all in one group: NCCL's own gather has parts of one size only.
  nccl_->launch({*host_, "all-gather", timeout_s_, {}}, [&](ncclComm_t comm, cudaStream_t stream) {
    for (size_t root = 0; root < ranges.size(); ++root) {
      const ByteRange& range = ranges[root];
      FLOTILLA_ASSERT(range.begin >= 0 && range.begin <= range.end && range.end <= size);
      if (range.size() == 0) continue;
      std::byte* part = bytes + range.begin;
      check_nccl(ncclBroadcast(part, part, static_cast<size_t>(range.size()), kBytes,
                               static_cast<int>(root), comm, stream),
                 "ncclBroadcast", comm);
    }
  });
  nccl_->finish();
}

// Each rank sums one slice, in the order of the ranks; then the slices are gathered.
void NcclCommunicator::all_reduce_sum(at::Tensor& tensor) {
  if (!is_mine(tensor)) return host_->all_reduce_sum(tensor);
  if (tensor.numel() == 0) return;
  const int64_t count = tensor.numel();
  const int64_t slice = (count + world_size() - 1) / world_size();
  const at::Tensor own = at::zeros({world_size(), slice}, tensor.options());
  own.view({-1}).narrow(0, 0, count).copy_(tensor.contiguous().view({-1}));
  const at::Tensor parts = at::empty_like(own);  // [N, slice]: of each rank
  std::vector<Transfer> sends, receives;
  for (int peer = 0; peer < world_size(); ++peer) {
    sends.push_back({own.select(0, peer), peer});
    receives.push_back({parts.select(0, peer), peer});
  }
  start(sends, receives, "all-reduce", timeout_s_);
  at::Tensor sum = parts.select(0, 0).to(sum_type(tensor.scalar_type()), /*non_blocking=*/false,
                                         /*copy=*/true);
  for (int r = 1; r < world_size(); ++r) sum.add_(parts.select(0, r));
  const at::Tensor all = all_gather_on_gpu(sum.to(tensor.scalar_type()));  // [N, slice]
  tensor.copy_(all.view({-1}).narrow(0, 0, count).view(tensor.sizes()));
}

int64_t NcclCommunicator::all_max(int64_t value) { return host_->all_max(value); }

void NcclCommunicator::start(std::span<const Transfer> sends, std::span<const Transfer> receives,
                             std::string_view what, double timeout_s) {
  nccl_->launch({*host_, std::string(what), timeout_s, {}},
                [&](ncclComm_t comm, cudaStream_t stream) {
                  for (const auto& [part, peer] : sends) {
                    check_nccl(ncclSend(data_of(part), part.nbytes(), kBytes, peer, comm, stream),
                               "ncclSend", comm);
                  }
                  for (const auto& [part, peer] : receives) {
                    check_nccl(ncclRecv(data_of(part), part.nbytes(), kBytes, peer, comm, stream),
                               "ncclRecv", comm);
                  }
                });
}

// A note through MPI goes first, with the tag: it finds the receiver, and keeps the two sides'
// order and sizes alike, which NCCL would not check.
void NcclCommunicator::send(const at::Tensor& tensor, int to, int tag) {
  if (!is_mine(tensor)) return host_->send(tensor, to, tag);
  const at::Tensor whole = tensor.contiguous();
  host_->send(at::tensor({nccl_->next_sent(to), static_cast<int64_t>(whole.nbytes())}, at::kLong),
              to, tag);
  if (whole.numel() == 0) return;
  nccl_->launch({*host_, "send", timeout_s_, to}, [&](ncclComm_t comm, cudaStream_t stream) {
    check_nccl(ncclSend(data_of(whole), whole.nbytes(), kBytes, to, comm, stream), "ncclSend",
               comm);
  });
  nccl_->finish();
}

void NcclCommunicator::receive(at::Tensor& tensor, int from, int tag) {
  if (!is_mine(tensor)) return host_->receive(tensor, from, tag);
  at::Tensor note = at::zeros({2}, at::kLong);
  host_->receive(note, from, tag);
  const auto* fields = note.const_data_ptr<int64_t>();
  const int64_t number = nccl_->next_received(from);
  if (fields[0] != number || fields[1] != static_cast<int64_t>(tensor.nbytes())) {
    fail(ErrorKind::internal,
         fmt::format("rank {} takes GPU message {} of {} bytes from rank {}, which sent message {} "
                     "of {} bytes with tag {}",
                     world_rank(rank()), number, tensor.nbytes(), world_rank(from), fields[0],
                     fields[1], tag));
  }
  if (tensor.numel() == 0) return;
  const at::Tensor whole = tensor.contiguous();
  nccl_->launch({*host_, "receive", timeout_s_, from}, [&](ncclComm_t comm, cudaStream_t stream) {
    check_nccl(ncclRecv(data_of(whole), whole.nbytes(), kBytes, from, comm, stream), "ncclRecv",
               comm);
  });
  nccl_->finish();
  if (!whole.is_same(tensor)) tensor.copy_(whole);
}

void NcclCommunicator::send(std::string_view text, int to, int tag) { host_->send(text, to, tag); }

std::string NcclCommunicator::receive_text(int from, int tag) {
  return host_->receive_text(from, tag);
}

std::unique_ptr<Communicator> NcclCommunicator::split(int group) {
  std::unique_ptr<MpiCommunicator> members = host_->split_host(group);
  if (members->world_size() == 1) return members;
  std::shared_ptr<MpiCommunicator> host = std::move(members);
  auto nccl = std::make_shared<NcclComm>(*host, nccl_->device(), timeout_s_);
  return std::make_unique<NcclCommunicator>(std::move(host), std::move(nccl), timeout_s_);
}

void NcclCommunicator::close() {
  // The last of those that share it, on all ranks alike.
  if (nccl_.use_count() == 1) nccl_->close(*host_, timeout_s_);
  nccl_.reset();
  host_->close();
}

}  // namespace flotilla::comm
