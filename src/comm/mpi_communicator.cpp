#include "comm/mpi_communicator.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace flotilla::comm {
namespace {

// MPI counts are int; larger tensors go in pieces.
constexpr int64_t kMaxPieceBytes = int64_t{1} << 30;
// A reduction needs two more buffers of its piece's size.
constexpr int64_t kReducePieceBytes = int64_t{64} << 20;
// Bounds what is in flight, in MPI's buffers and, for tensors of a GPU, in a host buffer.
constexpr int64_t kInPlacePieceBytes = int64_t{8} << 20;

// All bytes of a contiguous tensor of the host, [bytes]; shares its memory.
at::Tensor bytes_of(const at::Tensor& tensor) {
  FLOTILLA_ASSERT(tensor.is_contiguous() && tensor.device().is_cpu());
  return at::from_blob(
      tensor.mutable_data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, [tensor](void*) {},
      at::TensorOptions(at::kByte));
}

at::Tensor on_host(const at::Tensor& tensor) { return tensor.contiguous().cpu(); }

at::Tensor copy_of(std::string_view text) {
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

int count_of(const at::Tensor& tensor) {
  FLOTILLA_ASSERT(static_cast<int64_t>(tensor.nbytes()) <= kMaxPieceBytes);
  return static_cast<int>(tensor.nbytes());
}

// Calls `use` with successive parts of a one-dimensional tensor.
template <typename Use>
void in_pieces(const at::Tensor& flat, int64_t piece_bytes, Use&& use) {
  const int64_t step = std::max<int64_t>(1, piece_bytes / flat.element_size());
  for (int64_t begin = 0; begin < flat.numel(); begin += step)
    use(flat.narrow(0, begin, std::min(step, flat.numel() - begin)));
}

at::ScalarType sum_type(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

}  // namespace

MpiCommunicator::MpiCommunicator(MpiComm comm, std::shared_ptr<JobBoard> job, double timeout_s)
    : comm_(std::move(comm)),
      rank_(comm_.rank()),
      size_(comm_.size()),
      timeout_s_(timeout_s),
      board_(comm_, std::move(job)) {}

int MpiCommunicator::world_rank(int rank) const {
  return board_.world_ranks().at(static_cast<size_t>(rank));
}

void MpiCommunicator::barrier(std::string_view what, double timeout_s) {
  const uint64_t epoch = board_.arrive();
  wait_until(
      board_.peers(), {what, timeout_s, Deadline::from_progress},
      [&] { return board_.all_arrived(epoch); }, [&] { return board_.behind(epoch); });
}

void MpiCommunicator::meet(std::string_view what, double at_most_s) {
  if (size_ == 1) return;
  const uint64_t epoch = board_.arrive(Board::kMeetings);
  wait_until(
      board_.peers(), {what, std::min(timeout_s_, at_most_s), Deadline::from_progress},
      [&] { return board_.all_arrived(epoch, Board::kMeetings); },
      [&] { return board_.behind(epoch, Board::kMeetings); });
}

void MpiCommunicator::wait(MPI_Request request, const WaitLimit& limit,
                           const std::vector<int>& missing, uint64_t epoch,
                           const std::vector<at::Tensor>& buffers) {
  board_.job()->note_progress();
  const auto ready = [&] {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), limit.what);
    return done != 0;
  };
  try {
    wait_until(board_.peers(), limit, ready,
               [&] { return missing.empty() ? board_.behind(epoch) : missing; });
  } catch (...) {
    abandoned_.insert(abandoned_.end(), buffers.begin(), buffers.end());
    throw;
  }
}

void MpiCommunicator::finish(MPI_Request request, std::string_view what,
                             const std::vector<at::Tensor>& buffers) {
  wait(request, {what, timeout_s_, Deadline::from_progress}, {}, board_.arrive(), buffers);
}

void MpiCommunicator::finish_message(MPI_Request request, std::string_view what, int peer,
                                     const at::Tensor& buffer) {
  wait(request, {what, timeout_s_, Deadline::from_progress}, {world_rank(peer)}, 0, {buffer});
}

void MpiCommunicator::broadcast_bytes(const at::Tensor& bytes, int root) {
  if (size_ == 1) return;
  in_pieces(bytes, kMaxPieceBytes, [&](const at::Tensor& piece) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibcast(piece.mutable_data_ptr(), count_of(piece), MPI_BYTE, root, comm_.get(),
                         &request),
              "MPI_Ibcast");
    finish(request, "broadcast", {piece});
  });
}

void MpiCommunicator::broadcast(at::Tensor& tensor, int root) {
  const at::Tensor host = on_host(tensor);
  broadcast_bytes(bytes_of(host), root);
  if (!host.is_same(tensor) && rank_ != root) tensor.copy_(host);
}

std::string MpiCommunicator::broadcast(std::string_view text, int root) {
  const at::Tensor size = at::scalar_tensor(static_cast<int64_t>(text.size()), at::kLong);
  broadcast_bytes(bytes_of(size), root);
  const at::Tensor bytes =
      rank_ == root ? copy_of(text) : at::empty({size.item<int64_t>()}, at::kByte);
  broadcast_bytes(bytes, root);
  return text_of(bytes);
}

// [bytes] -> [N, bytes]
at::Tensor MpiCommunicator::all_gather_bytes(const at::Tensor& bytes) {
  const at::Tensor all = at::empty({size_, bytes.numel()}, at::kByte);
  if (bytes.numel() > kMaxPieceBytes) {
    all.select(0, rank_).copy_(bytes);
    for (int root = 0; root < size_; ++root) broadcast_bytes(all.select(0, root), root);
    return all;
  }
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Iallgather(bytes.const_data_ptr(), count_of(bytes), MPI_BYTE, all.mutable_data_ptr(),
                     count_of(bytes), MPI_BYTE, comm_.get(), &request),
      "MPI_Iallgather");
  finish(request, "all-gather", {bytes, all});
  return all;
}

at::Tensor MpiCommunicator::all_gather(const at::Tensor& tensor) {
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape.insert(shape.begin(), size_);
  const at::Tensor all = all_gather_bytes(bytes_of(on_host(tensor)));
  const at::Tensor typed = at::empty(shape, at::TensorOptions(tensor.scalar_type()));
  if (all.nbytes() > 0) std::memcpy(typed.mutable_data_ptr(), all.const_data_ptr(), all.nbytes());
  return typed.to(tensor.device());
}

std::vector<std::string> MpiCommunicator::all_gather(std::string_view text) {
  const int64_t longest = all_max(static_cast<int64_t>(text.size()));
  // Length, then the text, filled up to the longest one.
  const at::Tensor own = at::zeros({longest + static_cast<int64_t>(sizeof(int64_t))}, at::kByte);
  const auto length = static_cast<int64_t>(text.size());
  auto* bytes = static_cast<char*>(own.mutable_data_ptr());
  std::memcpy(bytes, &length, sizeof(length));
  std::memcpy(bytes + sizeof(length), text.data(), text.size());
  const at::Tensor all = all_gather_bytes(own);
  std::vector<std::string> texts;
  for (int r = 0; r < size_; ++r) {
    const auto* row = static_cast<const char*>(all.select(0, r).const_data_ptr());
    int64_t row_length = 0;
    std::memcpy(&row_length, row, sizeof(row_length));
    texts.emplace_back(row + sizeof(row_length), static_cast<size_t>(row_length));
  }
  return texts;
}

void MpiCommunicator::all_gather_in_place(at::Tensor& tensor, std::span<const ByteRange> ranges) {
  FLOTILLA_ASSERT(tensor.is_contiguous() && static_cast<int>(ranges.size()) == size_);
  const at::Tensor bytes = tensor.view({-1}).view(at::kByte);
  for (int root = 0; root < size_; ++root) {
    const ByteRange& range = ranges[static_cast<size_t>(root)];
    in_pieces(bytes.narrow(0, range.begin, range.size()), kInPlacePieceBytes,
              [&](at::Tensor piece) { broadcast(piece, root); });
  }
}

// Each rank sums one slice of the piece, in the order of the ranks; then the slices are gathered.
at::Tensor MpiCommunicator::reduce_piece(const at::Tensor& piece) {
  const int64_t slice = (piece.numel() + size_ - 1) / size_;
  const at::Tensor own = at::zeros({size_ * slice}, piece.options());
  own.narrow(0, 0, piece.numel()).copy_(piece);
  const at::Tensor parts = at::empty({size_, slice}, piece.options());
  const int count = count_of(parts.select(0, 0));
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ialltoall(own.const_data_ptr(), count, MPI_BYTE, parts.mutable_data_ptr(), count,
                          MPI_BYTE, comm_.get(), &request),
            "MPI_Ialltoall");
  finish(request, "all-reduce", {own, parts});
  at::Tensor sum = parts.select(0, 0).to(sum_type(piece.scalar_type()), /*non_blocking=*/false,
                                         /*copy=*/true);
  for (int r = 1; r < size_; ++r) sum.add_(parts.select(0, r));
  return all_gather(sum.to(piece.scalar_type())).flatten().narrow(0, 0, piece.numel());
}

void MpiCommunicator::all_reduce_sum(at::Tensor& tensor) {
  if (size_ == 1) return;
  const at::Tensor host = on_host(tensor);
  in_pieces(host.view({-1}), kReducePieceBytes,
            [&](const at::Tensor& piece) { piece.copy_(reduce_piece(piece)); });
  if (!host.is_same(tensor)) tensor.copy_(host);
}

int64_t MpiCommunicator::all_max(int64_t value) {
  if (size_ == 1) return value;
  const at::Tensor cells = at::full({2}, value, at::kLong);  // own, largest
  auto* data = cells.mutable_data_ptr<int64_t>();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallreduce(data, data + 1, 1, MPI_INT64_T, MPI_MAX, comm_.get(), &request),
            "MPI_Iallreduce");
  finish(request, "all-reduce", {cells});
  return data[1];
}

void MpiCommunicator::send(const at::Tensor& tensor, int to, int tag) {
  in_pieces(bytes_of(on_host(tensor)), kMaxPieceBytes, [&](const at::Tensor& piece) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(piece.const_data_ptr(), count_of(piece), MPI_BYTE, to, tag, comm_.get(),
                        &request),
              "MPI_Isend");
    finish_message(request, "send", to, piece);
  });
}

void MpiCommunicator::receive(at::Tensor& tensor, int from, int tag) {
  const at::Tensor host = on_host(tensor);
  in_pieces(bytes_of(host), kMaxPieceBytes, [&](const at::Tensor& piece) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(piece.mutable_data_ptr(), count_of(piece), MPI_BYTE, from, tag, comm_.get(),
                        &request),
              "MPI_Irecv");
    finish_message(request, "receive", from, piece);
  });
  if (!host.is_same(tensor)) tensor.copy_(host);
}

void MpiCommunicator::send(std::string_view text, int to, int tag) {
  send(at::scalar_tensor(static_cast<int64_t>(text.size()), at::kLong), to, tag);
  send(copy_of(text), to, tag);
}

std::string MpiCommunicator::receive_text(int from, int tag) {
  at::Tensor size = at::zeros({}, at::kLong);
  receive(size, from, tag);
  at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  receive(bytes, from, tag);
  return text_of(bytes);
}

std::unique_ptr<Communicator> MpiCommunicator::split(int group) { return split_host(group); }

std::unique_ptr<MpiCommunicator> MpiCommunicator::split_host(int group) {
  FLOTILLA_ASSERT(group >= 0);
  // MPI_Comm_split waits without looking at peers or deadlines: let all ranks come to it first.
  barrier("split into groups", timeout_s_);
  return std::make_unique<MpiCommunicator>(MpiComm::split(comm_.get(), group, rank_), board_.job(),
                                           timeout_s_);
}

void MpiCommunicator::close() {
  barrier("close", timeout_s_);
  comm_.free();
}

}  // namespace flotilla::comm
