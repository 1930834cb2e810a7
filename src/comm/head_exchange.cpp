#include "comm/head_exchange.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "comm/agreement.h"
#include "comm/exchange_layout.h"
#include "comm/gpu_head_exchange.h"
#include "comm/peer_buffers.h"

namespace flotilla::comm {
namespace {

constexpr int kMaxUsableRanks = 8;
constexpr int64_t kHeaderBytes = 4096;
constexpr int64_t kAlignment = 64;
constexpr size_t kMaxTensors = 4;
// A thread copies at least this much; less does not pay for waking it.
constexpr int64_t kBytesPerThread = int64_t{1} << 19;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

void copy_block(const BlockCopy& block, const std::byte* from, std::byte* to) {
  if (block.row_bytes == 0) return;
  const int64_t rows_per_thread = std::max<int64_t>(1, kBytesPerThread / block.row_bytes);
  at::parallel_for(0, block.batches * block.rows, rows_per_thread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / block.rows;
      const int64_t row = i % block.rows;
      std::memcpy(to + block.to.at(batch, row), from + block.from.at(batch, row),
                  static_cast<size_t>(block.row_bytes));
    }
  });
}

const std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.const_data_ptr());
}

// A tensor of a call with its place in the receiver's slot.
struct Part {
  at::Tensor tensor;  // contiguous
  int64_t token_bytes = 0;
  int64_t slot_offset = 0;
};

// Each rank's buffer: a header with the number of the last call that it has delivered, then two
// slots that calls use in turn. A rank delivers call n + 2 only after all ranks have delivered
// n + 1, and so are through with the results of n: one that is ahead overruns nobody.
class HostHeadExchange final : public HeadExchange {
 public:
  HostHeadExchange(Communicator& communicator, const HeadExchangeOptions& options);

  int rank() const override { return communicator_.rank(); }
  int world_size() const override { return communicator_.world_size(); }
  void set_token_count(int64_t tokens, int64_t batch) override;
  int64_t token_count() const override { return shards_.tokens; }
  std::vector<at::Tensor> exchange(std::span<const at::Tensor> tokens) override;
  at::Tensor exchange_back(const at::Tensor& heads) override;
  std::vector<at::Tensor> all_gather_heads(std::span<const at::Tensor> heads) override;
  ExchangeStats stats() const override { return stats_; }

 private:
  using Clock = std::chrono::steady_clock;

  void check_input(const at::Tensor& tensor, int64_t rows) const;
  int64_t slot_start() const;
  // One call: `put(peer, slot of the peer)` for all, then waits until all have delivered to this
  // rank. `received_bytes`: what a slot must hold.
  template <typename Put>
  void call(std::string_view name, int64_t received_bytes, Put&& put);
  void send(const BlockCopy& block, const at::Tensor& from, int peer, std::byte* to);
  void wait_for_peers(std::string_view name);
  void clear_padding(int64_t token_bytes, std::byte* slot) const;

  std::atomic<uint64_t>& delivered(int rank) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(buffers_->data(rank));
  }
  std::vector<int> missing_ranks() const;

  Communicator& communicator_;
  HeadExchangeOptions options_;
  int64_t slot_bytes_;
  std::optional<PeerBuffers> buffers_;  // none for one rank
  TokenShards shards_;
  int64_t batch_ = 0;
  int64_t reserved_bytes_ = 0;  // of each slot
  int64_t counts_set_ = 0;
  uint64_t epoch_ = 0;
  bool broken_ = false;
  ExchangeStats stats_;
};

// Bytes that a slot needs for `tokens` tokens; each tensor starts at its own aligned place.
int64_t bytes_for(const HeadExchangeOptions& options, const TokenShards& shards, int64_t batch) {
  const int64_t tokens = batch * shards.padded_local() * options.token_bytes;
  return round_up(std::max(tokens, options.max_gather_bytes) + int64_t{kMaxTensors} * kAlignment,
                  kHeaderBytes);
}

HostHeadExchange::HostHeadExchange(Communicator& communicator, const HeadExchangeOptions& options)
    : communicator_(communicator),
      options_(options),
      slot_bytes_(
          bytes_for(options, {options.max_tokens, communicator.world_size()}, options.max_batch)) {
  shards_.world_size = world_size();
  if (world_size() == 1) return;
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  buffers_.emplace(communicator, kHeaderBytes + 2 * slot_bytes_);
  agreed(communicator, [&] { buffers_->reserve(0, kHeaderBytes); });
}

void HostHeadExchange::set_token_count(int64_t tokens, int64_t batch) {
  agreed(communicator_, [&] {
    check_token_count(tokens, options_.max_tokens);
    FLOTILLA_ASSERT(tokens > 0 && batch > 0 && batch <= options_.max_batch);
    shards_.tokens = tokens;
    batch_ = batch;
    if (world_size() == 1) return;
    const int64_t bytes = bytes_for(options_, shards_, batch);
    if (bytes <= reserved_bytes_) return;
    for (int slot = 0; slot < 2; ++slot)
      buffers_->reserve(kHeaderBytes + slot * slot_bytes_, bytes);
    reserved_bytes_ = bytes;
  });
  agree_on(communicator_, "the number of video tokens", tokens);
  agree_on(communicator_, "the number of samples", batch);
  ++counts_set_;
}

void HostHeadExchange::check_input(const at::Tensor& tensor, int64_t rows) const {
  FLOTILLA_ASSERT(tensor.dim() == 3 && (tensor.device().is_cpu() || world_size() == 1));
  FLOTILLA_ASSERT(tensor.size(0) == batch_ && tensor.size(1) == rows);
}

int64_t HostHeadExchange::slot_start() const {
  return kHeaderBytes + static_cast<int64_t>(epoch_ % 2) * slot_bytes_;
}

template <typename Put>
void HostHeadExchange::call(std::string_view name, int64_t received_bytes, Put&& put) {
  if (broken_) fail(ErrorKind::communication, "the head exchange is out of use after a fault");
  FLOTILLA_ASSERT(received_bytes <= reserved_bytes_);
  const auto start = Clock::now();
  ++epoch_;
  // Each rank begins with another peer, so that not all write to one memory at a time.
  for (int step = 0; step < world_size(); ++step) {
    const int peer = (rank() + step) % world_size();
    put(peer, buffers_->data(peer) + slot_start());
  }
  const auto delivered_at = Clock::now();
  wait_for_peers(name);
  const auto end = Clock::now();
  ++stats_.calls;
  stats_.seconds += std::chrono::duration<double>(end - start).count();
  stats_.wait_seconds += std::chrono::duration<double>(end - delivered_at).count();
}

void HostHeadExchange::wait_for_peers(std::string_view name) {
  delivered(rank()).store(epoch_, std::memory_order_release);
  communicator_.peers().note_progress();
  const double timeout_s = counts_set_ > 1 ? options_.timeout_s : options_.first_timeout_s;
  const std::string what = fmt::format("{} (call {} of the head exchange)", name, epoch_);
  const auto ready = [&] {
    for (int r = 0; r < world_size(); ++r) {
      // At least, never exactly: a peer may be one call ahead.
      if (delivered(r).load(std::memory_order_acquire) < epoch_) return false;
    }
    return true;
  };
  try {
    wait_until(communicator_.peers(), {what, timeout_s}, ready, [&] { return missing_ranks(); });
  } catch (...) {
    broken_ = true;
    throw;
  }
}

std::vector<int> HostHeadExchange::missing_ranks() const {
  std::vector<int> missing;
  for (int r = 0; r < world_size(); ++r) {
    if (delivered(r).load(std::memory_order_acquire) < epoch_)
      missing.push_back(communicator_.world_rank(r));
  }
  return missing;
}

void HostHeadExchange::send(const BlockCopy& block, const at::Tensor& from, int peer,
                            std::byte* to) {
  copy_block(block, bytes_of(from), to);
  if (peer != rank()) stats_.bytes += block.batches * block.rows * block.row_bytes;
}

std::vector<at::Tensor> HostHeadExchange::exchange(std::span<const at::Tensor> tokens) {
  FLOTILLA_ASSERT(tokens.size() <= kMaxTensors);
  std::vector<at::Tensor> heads;
  std::vector<Part> parts;
  int64_t received = 0;
  for (const at::Tensor& tensor : tokens) {
    check_input(tensor, local_tokens());
    if (world_size() == 1) {
      heads.push_back(tensor);
      continue;
    }
    FLOTILLA_ASSERT(tensor.size(2) % world_size() == 0);
    const int64_t token_bytes = tensor.size(2) * tensor.element_size();
    parts.push_back({tensor.contiguous(), token_bytes, received});
    received =
        round_up(received + batch_ * shards_.tokens * (token_bytes / world_size()), kAlignment);
  }
  if (parts.empty()) return heads;
  call("tokens to heads", received, [&](int peer, std::byte* slot) {
    for (const Part& part : parts) {
      send(tokens_to_heads(shards_, batch_, part.token_bytes, rank(), peer), part.tensor, peer,
           slot + part.slot_offset);
    }
  });
  for (const Part& part : parts) {
    heads.push_back(buffers_->tensor(rank(), slot_start() + part.slot_offset,
                                     {batch_, shards_.tokens, part.tensor.size(2) / world_size()},
                                     part.tensor.scalar_type()));
  }
  return heads;  // [B, T, W/N] each
}

at::Tensor HostHeadExchange::exchange_back(const at::Tensor& heads) {
  check_input(heads, shards_.tokens);
  if (world_size() == 1) return heads;
  const at::Tensor own = heads.contiguous();
  const int64_t token_bytes = own.size(2) * world_size() * own.element_size();
  call("heads to tokens", batch_ * local_tokens() * token_bytes, [&](int peer, std::byte* slot) {
    send(heads_to_tokens(shards_, batch_, token_bytes, rank(), peer), own, peer, slot);
    if (peer == rank()) clear_padding(token_bytes, slot);
  });
  return buffers_->tensor(rank(), slot_start(),
                          {batch_, local_tokens(), own.size(2) * world_size()},
                          own.scalar_type());  // [B, S, W]
}

// Rows behind the last token: nobody sends them.
void HostHeadExchange::clear_padding(int64_t token_bytes, std::byte* slot) const {
  const int64_t filled = shards_.count(rank());
  for (int64_t batch = 0; batch < batch_; ++batch) {
    std::memset(slot + (batch * local_tokens() + filled) * token_bytes, 0,
                static_cast<size_t>((local_tokens() - filled) * token_bytes));
  }
}

std::vector<at::Tensor> HostHeadExchange::all_gather_heads(std::span<const at::Tensor> heads) {
  if (world_size() == 1) return {heads.begin(), heads.end()};
  FLOTILLA_ASSERT(heads.size() <= kMaxTensors);
  std::vector<Part> parts;
  int64_t received = 0;
  for (const at::Tensor& tensor : heads) {
    FLOTILLA_ASSERT(tensor.dim() == 3 && tensor.device().is_cpu());
    const int64_t token_bytes = tensor.size(2) * world_size() * tensor.element_size();
    parts.push_back({tensor.contiguous(), token_bytes, round_up(received, kAlignment)});
    received = parts.back().slot_offset + tensor.size(0) * tensor.size(1) * token_bytes;
  }
  call("heads to all", received, [&](int peer, std::byte* slot) {
    for (const auto& [own, token_bytes, offset] : parts)
      send(heads_to_all(own.size(1), world_size(), own.size(0), token_bytes, rank()), own, peer,
           slot + offset);
  });
  std::vector<at::Tensor> whole;
  for (const auto& [own, token_bytes, offset] : parts) {
    whole.push_back(buffers_->tensor(rank(), slot_start() + offset,
                                     {own.size(0), own.size(1), own.size(2) * world_size()},
                                     own.scalar_type()));
  }
  return whole;  // [B, Ta, W] each
}

}  // namespace

void check_heads(int64_t heads, int world_size) {
  if (heads > 0 && heads % world_size == 0) return;
  std::vector<int> usable;
  for (int n = 1; n <= kMaxUsableRanks; ++n) {
    if (heads % n == 0) usable.push_back(n);
  }
  const int last = usable.back();
  usable.pop_back();
  fail(ErrorKind::config,
       fmt::format("heads ({}) must be divisible by world_size ({}); use {}{}{} rank{}", heads,
                   world_size, fmt::join(usable, ", "), usable.empty() ? "" : " or ", last,
                   usable.empty() ? "" : "s"));
}

void check_token_count(int64_t tokens, int64_t max_tokens) {
  if (tokens <= max_tokens) return;
  fail(ErrorKind::config,
       fmt::format("Total video token count ({}) exceeds attention_manager max_tokens ({}). Use a "
                   "smaller resolution or fewer frames. (Or raise sp.max_tokens.)",
                   tokens, max_tokens));
}

std::unique_ptr<HeadExchange> make_head_exchange(Communicator& communicator,
                                                 const HeadExchangeOptions& options) {
#ifdef FLOTILLA_CUDA
  if (options.device.is_cuda() && communicator.world_size() > 1)
    return make_gpu_head_exchange(communicator, options);
#endif
  agreed(communicator, [&] {
    check_heads(options.heads, communicator.world_size());
    FLOTILLA_ASSERT(options.max_tokens > 0 && options.max_batch > 0 && options.token_bytes > 0);
  });
  return std::make_unique<HostHeadExchange>(communicator, options);
}

}  // namespace flotilla::comm
