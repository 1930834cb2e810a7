#include "comm/cuda_head_exchange.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "comm/agreement.h"
#include "comm/device_peer_buffers.h"
#include "comm/exchange_layout.h"
#include "gpu/cuda_check.h"
#include "gpu/device_buffer.h"
#include "kernels/all_to_all.h"
#include "kernels/qk_norm_rope.h"

namespace flotilla::comm {
namespace {

// Flags of the ranks, then the two slots.
constexpr int64_t kHeaderBytes = 4096;
constexpr int64_t kAlignment = 256;
static_assert(kernels::kMaxRanks * kernels::kFlagStride * 8 <= kHeaderBytes);

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Memory of the host that kernels write to.
class FaultRecord {
 public:
  FaultRecord() {
    void* memory = nullptr;
    gpu::check_cuda(cudaHostAlloc(&memory, sizeof(kernels::ExchangeFault), cudaHostAllocMapped),
                    "cudaHostAlloc");
    record_ = new (memory) kernels::ExchangeFault();
  }
  ~FaultRecord() { static_cast<void>(cudaFreeHost(record_)); }
  FaultRecord(const FaultRecord&) = delete;
  FaultRecord& operator=(const FaultRecord&) = delete;

  kernels::ExchangeFault* get() const { return record_; }
  bool raised() const { return *static_cast<volatile uint32_t*>(&record_->raised) != 0; }

 private:
  kernels::ExchangeFault* record_;
};

// The buffers of the ranks: shared with them, or in loop-back all this rank's own.
class Buffers {
 public:
  Buffers(Communicator& communicator, at::Device device, int64_t bytes)
      : device_(device), shared_(std::in_place, communicator, device, bytes) {
    for (int r = 0; r < communicator.world_size(); ++r) data_.push_back(shared_->data(r));
  }
  Buffers(int world_size, at::Device device, int64_t bytes) : device_(device) {
    for (int r = 0; r < world_size; ++r) {
      own_.emplace_back(device, bytes);
      data_.push_back(own_.back().data());
    }
  }

  bool is_loopback() const { return !own_.empty(); }
  std::byte* data(int rank) const { return data_[static_cast<size_t>(rank)]; }
  at::Tensor view(int rank, int64_t offset, at::IntArrayRef sizes, at::ScalarType dtype) const {
    return gpu::device_view(data(rank) + offset, sizes, dtype, device_);
  }
  void close() {
    if (shared_) shared_->close();
  }

 private:
  at::Device device_;
  std::optional<DevicePeerBuffers> shared_;
  std::vector<gpu::DeviceBuffer> own_;
  std::vector<std::byte*> data_;
};

class CudaHeadExchange final : public HeadExchange {
 public:
  // `communicator` null: loop-back.
  CudaHeadExchange(Communicator* communicator, int world_size, at::Device device,
                   const HeadExchangeOptions& options);

  int rank() const override { return communicator_ != nullptr ? communicator_->rank() : 0; }
  int world_size() const override { return static_cast<int>(shards_.world_size); }
  void set_token_count(int64_t tokens, int64_t batch) override;
  int64_t token_count() const override { return shards_.tokens; }
  std::vector<at::Tensor> exchange(std::span<const at::Tensor> tokens) override;
  std::optional<std::vector<at::Tensor>> exchange_raw(std::span<const RawHeads> tokens,
                                                      int64_t heads, double norm_eps) override;
  at::Tensor exchange_back(const at::Tensor& heads) override;
  std::vector<at::Tensor> all_gather_heads(std::span<const at::Tensor> heads) override;
  bool can_be_captured() const override { return true; }
  ExchangeStats stats() const override;
  void close() override;

 private:
  // A tensor of a call with its place in the receiver's slot.
  struct Part {
    at::Tensor tensor;  // contiguous
    int64_t token_bytes = 0;
    int64_t slot_offset = 0;
  };
  // Of [B, S, W] tensors that go out together.
  std::vector<Part> place_parts(std::span<const at::Tensor> tokens) const;
  BlockCopy copy_to(const Part& part, int peer) const;
  std::vector<at::Tensor> received_heads(const std::vector<Part>& parts, int64_t slot) const;

  // Counts a call that sends `bytes` to others; gives its slot's offset.
  int64_t begin_call(int64_t received_bytes, int64_t bytes_out);
  kernels::ExchangePeers peers_of_call(int64_t slot, int64_t bytes_out) const;
  // A call that carries nothing.
  void meet();
  void check_fault() const;
  void check_input(const at::Tensor& tensor, int64_t rows) const;

  Communicator* communicator_;
  at::Device device_;
  HeadExchangeOptions options_;
  int64_t slot_bytes_;
  std::optional<Buffers> buffers_;
  gpu::DeviceBuffer progress_;
  FaultRecord fault_;
  TokenShards shards_;
  int64_t batch_ = 0;
  int64_t counts_set_ = 0;
  int64_t calls_ = 0;
  int ranks_on_device_ = 1;
};

// How many ranks compute on this rank's GPU. Collective.
int count_on_device(Communicator& communicator, at::Device device) {
  char bus_id[32] = {};
  gpu::check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device.index()),
                  "cudaDeviceGetPCIBusId");
  const auto all = communicator.all_gather(bus_id);
  return static_cast<int>(std::count(all.begin(), all.end(), std::string(bus_id)));
}

int64_t slot_bytes_for(const HeadExchangeOptions& options, int64_t world_size) {
  const TokenShards shards{options.max_tokens, world_size};
  const int64_t tokens = options.max_batch * shards.padded_local() * options.token_bytes;
  return round_up(
      std::max(tokens, options.max_gather_bytes) + int64_t{kernels::kMaxExchangeParts} * kAlignment,
      kHeaderBytes);
}

CudaHeadExchange::CudaHeadExchange(Communicator* communicator, int world_size, at::Device device,
                                   const HeadExchangeOptions& options)
    : communicator_(communicator),
      device_(device),
      options_(options),
      slot_bytes_(slot_bytes_for(options, world_size)),
      progress_(device, sizeof(kernels::ExchangeProgress)) {
  FLOTILLA_ASSERT(world_size <= kernels::kMaxRanks);
  shards_.world_size = world_size;
  const int64_t bytes = kHeaderBytes + 2 * slot_bytes_;
  if (communicator != nullptr) {
    buffers_.emplace(*communicator, device, bytes);
    ranks_on_device_ = count_on_device(*communicator, device);
  } else {
    buffers_.emplace(world_size, device, bytes);
  }
}

void CudaHeadExchange::set_token_count(int64_t tokens, int64_t batch) {
  // Slots take turns from call to call, in replays of a captured pass as well, which the host does
  // not count: every pass begins with the first slot.
  if (calls_ % 2 != 0) meet();
  const auto set = [&] {
    check_fault();
    check_token_count(tokens, options_.max_tokens);
    FLOTILLA_ASSERT(tokens > 0 && batch > 0 && batch <= options_.max_batch);
    shards_.tokens = tokens;
    batch_ = batch;
  };
  ++counts_set_;
  if (communicator_ == nullptr) return set();
  agreed(*communicator_, set);
  agree_on(*communicator_, "the number of video tokens", tokens);
  agree_on(*communicator_, "the number of samples", batch);
}

void CudaHeadExchange::check_fault() const {
  if (!fault_.raised()) return;
  const kernels::ExchangeFault& fault = *fault_.get();
  std::vector<int> missing;
  for (int r = 0; r < world_size(); ++r) {
    if ((fault.missing >> r & 1U) != 0)
      missing.push_back(communicator_ != nullptr ? communicator_->world_rank(r) : r);
  }
  fail(ErrorKind::communication,
       fmt::format("{} did not come to call {} of the head exchange between GPUs within {:g} s "
                   "(sp.exchange_timeout_seconds)",
                   ranks_text(missing), fault.call,
                   counts_set_ > 1 ? options_.timeout_s : options_.first_timeout_s));
}

void CudaHeadExchange::check_input(const at::Tensor& tensor, int64_t rows) const {
  FLOTILLA_ASSERT(tensor.dim() == 3 && tensor.device() == device_);
  FLOTILLA_ASSERT(tensor.size(0) == batch_ && tensor.size(1) == rows);
}

int64_t CudaHeadExchange::begin_call(int64_t received_bytes, int64_t bytes_out) {
  FLOTILLA_ASSERT(received_bytes <= slot_bytes_ && bytes_out >= 0);
  return kHeaderBytes + (calls_++ % 2) * slot_bytes_;
}

kernels::ExchangePeers CudaHeadExchange::peers_of_call(int64_t slot, int64_t bytes_out) const {
  const auto flag = [&](int holder, int of) {
    return reinterpret_cast<uint64_t*>(buffers_->data(holder)) + of * kernels::kFlagStride;
  };
  kernels::ExchangePeers peers;
  peers.rank = rank();
  peers.ranks = world_size();
  peers.ranks_on_device = ranks_on_device_;
  for (int r = 0; r < world_size(); ++r) {
    peers.slot[r] = buffers_->data(r) + slot;
    // In loop-back nobody else tells that a peer has come.
    peers.own_flag[r] = buffers_->is_loopback() ? flag(rank(), r) : flag(r, rank());
  }
  peers.peer_flags = flag(rank(), 0);
  peers.progress = reinterpret_cast<kernels::ExchangeProgress*>(progress_.data());
  peers.fault = fault_.get();
  peers.bytes_out = static_cast<uint64_t>(bytes_out);
  const double timeout_s = counts_set_ > 1 ? options_.timeout_s : options_.first_timeout_s;
  peers.timeout_ns = static_cast<uint64_t>(timeout_s * 1e9);
  return peers;
}

std::vector<CudaHeadExchange::Part> CudaHeadExchange::place_parts(
    std::span<const at::Tensor> tokens) const {
  FLOTILLA_ASSERT(tokens.size() <= static_cast<size_t>(kernels::kMaxExchangeParts));
  std::vector<Part> parts;
  int64_t offset = 0;
  for (const at::Tensor& tensor : tokens) {
    check_input(tensor, local_tokens());
    FLOTILLA_ASSERT(tensor.size(2) % world_size() == 0);
    const int64_t token_bytes = tensor.size(2) * tensor.element_size();
    parts.push_back({tensor.contiguous(), token_bytes, offset});
    offset = round_up(offset + batch_ * shards_.tokens * (token_bytes / world_size()), kAlignment);
  }
  return parts;
}

BlockCopy CudaHeadExchange::copy_to(const Part& part, int peer) const {
  BlockCopy copy = tokens_to_heads(shards_, batch_, part.token_bytes, rank(), peer);
  copy.to.offset += part.slot_offset;
  return copy;
}

std::vector<at::Tensor> CudaHeadExchange::received_heads(const std::vector<Part>& parts,
                                                         int64_t slot) const {
  std::vector<at::Tensor> heads;
  for (const Part& part : parts) {
    heads.push_back(buffers_->view(rank(), slot + part.slot_offset,
                                   {batch_, shards_.tokens, part.tensor.size(2) / world_size()},
                                   part.tensor.scalar_type()));
  }
  return heads;  // [B, T, W/N] each
}

int64_t bytes_of(const BlockCopy& copy) { return copy.batches * copy.rows * copy.row_bytes; }

void launch(kernels::AllToAllArgs& args) {
  gpu::check_cuda(kernels::launch_all_to_all(args, c10::cuda::getCurrentCUDAStream()),
                  "the exchange kernel");
}

void CudaHeadExchange::meet() {
  const c10::cuda::CUDAGuard guard(device_);
  kernels::AllToAllArgs args;
  args.peers = peers_of_call(begin_call(0, 0), 0);
  launch(args);
}

std::vector<at::Tensor> CudaHeadExchange::exchange(std::span<const at::Tensor> tokens) {
  const c10::cuda::CUDAGuard guard(device_);
  const auto parts = place_parts(tokens);
  kernels::AllToAllArgs args;
  int64_t bytes_out = 0;
  int64_t received = 0;
  for (const Part& part : parts) {
    auto& out = args.part[args.parts++];
    out.from = part.tensor.const_data_ptr();
    for (int peer = 0; peer < world_size(); ++peer) {
      out.to_rank[peer] = copy_to(part, peer);
      if (peer != rank()) bytes_out += bytes_of(out.to_rank[peer]);
    }
    received = part.slot_offset + batch_ * shards_.tokens * (part.token_bytes / world_size());
  }
  const int64_t slot = begin_call(received, bytes_out);
  args.peers = peers_of_call(slot, bytes_out);
  launch(args);
  return received_heads(parts, slot);
}

std::optional<std::vector<at::Tensor>> CudaHeadExchange::exchange_raw(
    std::span<const RawHeads> tokens, int64_t heads, double norm_eps) {
  const c10::cuda::CUDAGuard guard(device_);
  std::vector<at::Tensor> projections;
  for (const RawHeads& raw : tokens) projections.push_back(raw.tokens);
  const auto parts = place_parts(projections);
  const at::Tensor& first = parts.front().tensor;
  if (first.scalar_type() != at::kFloat && first.scalar_type() != at::kBFloat16)
    return std::nullopt;

  kernels::QkNormRopeArgs args;
  args.batches = batch_;
  args.tokens = local_tokens();
  args.live_tokens = shards_.count(rank());
  args.heads = heads;
  args.head_dim = first.size(2) / heads;
  args.eps = static_cast<float>(norm_eps);
  args.dtype =
      first.scalar_type() == at::kFloat ? kernels::DataType::float32 : kernels::DataType::bfloat16;
  int64_t bytes_out = 0;
  int64_t received = 0;
  for (size_t p = 0; p < parts.size(); ++p) {
    const RawHeads& raw = tokens[p];
    FLOTILLA_ASSERT(raw.tokens.sizes() == first.sizes() &&
                    raw.tokens.scalar_type() == first.scalar_type());
    auto& out = args.part[args.parts++];
    out.from = parts[p].tensor.const_data_ptr();
    for (int peer = 0; peer < world_size(); ++peer) {
      const BlockCopy copy = copy_to(parts[p], peer);
      out.to_rank[peer] = copy.to;
      if (peer != rank()) bytes_out += bytes_of(copy);
    }
    received =
        parts[p].slot_offset + batch_ * shards_.tokens * (parts[p].token_bytes / world_size());
    if (!raw.norm.defined()) continue;
    FLOTILLA_ASSERT(raw.norm.is_contiguous() && raw.norm.scalar_type() == first.scalar_type());
    out.weight = raw.norm.const_data_ptr();
    if (!raw.cos.defined()) continue;
    FLOTILLA_ASSERT(raw.cos.is_contiguous() && raw.sin.is_contiguous() &&
                    raw.cos.scalar_type() == first.scalar_type());
    FLOTILLA_ASSERT(raw.cos.dim() == 4 && raw.cos.size(1) == heads &&
                    raw.cos.size(2) == args.tokens && raw.cos.sizes() == raw.sin.sizes());
    // One table for all: the kernel reads it once a token.
    if (args.cos != nullptr && args.cos != raw.cos.const_data_ptr()) return std::nullopt;
    args.cos = raw.cos.const_data_ptr();
    args.sin = raw.sin.const_data_ptr();
    args.table_batches = raw.cos.size(0);
    out.rotated = true;
  }
  if (!kernels::can_qk_norm_rope(args)) return std::nullopt;
  const int64_t slot = begin_call(received, bytes_out);
  gpu::check_cuda(kernels::launch_qk_norm_rope_send(args, peers_of_call(slot, bytes_out),
                                                    c10::cuda::getCurrentCUDAStream()),
                  "the kernel of norm, RoPE and exchange");
  return received_heads(parts, slot);
}

at::Tensor CudaHeadExchange::exchange_back(const at::Tensor& heads) {
  const c10::cuda::CUDAGuard guard(device_);
  check_input(heads, shards_.tokens);
  const at::Tensor own = heads.contiguous();
  const int64_t token_bytes = own.size(2) * world_size() * own.element_size();
  kernels::AllToAllArgs args;
  args.parts = 1;
  args.part[0].from = own.const_data_ptr();
  int64_t bytes_out = 0;
  for (int peer = 0; peer < world_size(); ++peer) {
    args.part[0].to_rank[peer] = heads_to_tokens(shards_, batch_, token_bytes, rank(), peer);
    if (peer != rank()) bytes_out += bytes_of(args.part[0].to_rank[peer]);
  }
  // Rows behind the last token: nobody sends them.
  const int64_t filled = shards_.count(rank());
  args.cleared = {.batches = batch_,
                  .rows = local_tokens() - filled,
                  .row_bytes = token_bytes,
                  .from = {},
                  .to = {filled * token_bytes, local_tokens() * token_bytes, token_bytes}};
  const int64_t slot = begin_call(batch_ * local_tokens() * token_bytes, bytes_out);
  args.peers = peers_of_call(slot, bytes_out);
  launch(args);
  return buffers_->view(rank(), slot, {batch_, local_tokens(), own.size(2) * world_size()},
                        own.scalar_type());  // [B, S, W]
}

std::vector<at::Tensor> CudaHeadExchange::all_gather_heads(std::span<const at::Tensor> heads) {
  const c10::cuda::CUDAGuard guard(device_);
  FLOTILLA_ASSERT(heads.size() <= static_cast<size_t>(kernels::kMaxExchangeParts));
  kernels::AllToAllArgs args;
  std::vector<Part> parts;
  int64_t bytes_out = 0;
  int64_t received = 0;
  for (const at::Tensor& tensor : heads) {
    FLOTILLA_ASSERT(tensor.dim() == 3 && tensor.device() == device_);
    const int64_t token_bytes = tensor.size(2) * world_size() * tensor.element_size();
    const Part part{tensor.contiguous(), token_bytes, round_up(received, kAlignment)};
    BlockCopy block =
        heads_to_all(tensor.size(1), world_size(), tensor.size(0), token_bytes, rank());
    block.to.offset += part.slot_offset;
    auto& out = args.part[args.parts++];
    out.from = part.tensor.const_data_ptr();
    for (int peer = 0; peer < world_size(); ++peer) out.to_rank[peer] = block;
    bytes_out += (world_size() - 1) * bytes_of(block);
    received = part.slot_offset + tensor.size(0) * tensor.size(1) * token_bytes;
    parts.push_back(part);
  }
  const int64_t slot = begin_call(received, bytes_out);
  args.peers = peers_of_call(slot, bytes_out);
  launch(args);
  std::vector<at::Tensor> whole;
  for (const auto& [own, token_bytes, offset] : parts) {
    whole.push_back(buffers_->view(rank(), slot + offset,
                                   {own.size(0), own.size(1), own.size(2) * world_size()},
                                   own.scalar_type()));
  }
  return whole;  // [B, Ta, W] each
}

ExchangeStats CudaHeadExchange::stats() const {
  const c10::cuda::CUDAGuard guard(device_);
  gpu::check_cuda(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream()),
                  "cudaStreamSynchronize");
  check_fault();
  kernels::ExchangeProgress progress{};
  gpu::check_cuda(cudaMemcpy(&progress, progress_.data(), sizeof(progress), cudaMemcpyDeviceToHost),
                  "cudaMemcpy");
  constexpr double kNanosecond = 1e-9;
  return {.calls = static_cast<int64_t>(progress.calls),
          .bytes = static_cast<int64_t>(progress.bytes_out),
          .seconds = static_cast<double>(progress.busy_ns) * kNanosecond,
          .wait_seconds = static_cast<double>(progress.wait_ns) * kNanosecond};
}

void CudaHeadExchange::close() { buffers_->close(); }

}  // namespace

std::unique_ptr<HeadExchange> make_cuda_head_exchange(Communicator& communicator, at::Device device,
                                                      const HeadExchangeOptions& options) {
  agreed(communicator, [&] {
    check_heads(options.heads, communicator.world_size());
    FLOTILLA_ASSERT(options.max_tokens > 0 && options.max_batch > 0 && options.token_bytes > 0);
  });
  return std::make_unique<CudaHeadExchange>(&communicator, communicator.world_size(), device,
                                            options);
}

std::unique_ptr<HeadExchange> make_loopback_head_exchange(int world_size, at::Device device,
                                                          const HeadExchangeOptions& options) {
  check_heads(options.heads, world_size);
  return std::make_unique<CudaHeadExchange>(nullptr, world_size, device, options);
}

}  // namespace flotilla::comm
