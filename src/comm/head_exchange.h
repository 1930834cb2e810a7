// The exchange of sequence parallelism: each rank holds 1/N of the video tokens with all heads;
// attention needs all tokens of 1/N of the heads. Shapes: B samples, T tokens (in all), S =
// ceil(T/N) tokens of a rank, H heads of size D, N ranks. Used by parallel/; layouts:
// exchange_layout.h.
//
// Results are views of memory that peers write: they are valid until the next call of the object
// returns, and may be the input of that call. What must live longer is cloned by the caller.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace flotilla::comm {

// How heads pass between GPUs. Between CPUs it is always through shared memory.
enum class ExchangeTransport {
  automatic,  // peer where that can be had
  peer,       // kernels write to the peers' memory
  nccl,
};

struct HeadExchangeOptions {
  at::Device device = at::kCPU;  // of the tensors; a GPU with its index
  ExchangeTransport transport = ExchangeTransport::automatic;
  int64_t heads = 0;       // of the video self-attention
  int64_t max_tokens = 0;  // sp.max_tokens
  int64_t max_batch = 1;
  int64_t token_bytes = 0;       // of one token in one call: 3 * H * D * element size for q, k, v
  int64_t max_gather_bytes = 0;  // of the results of one all_gather_heads
  double timeout_s = 120;        // of one call: sp.exchange_timeout_seconds
  double first_timeout_s = 600;  // of the calls before the second set_token_count(): the first step
};

// A projection [B, S, H*D] with what lies between it and the dot product of attention.
struct RawHeads {
  at::Tensor tokens;
  at::Tensor norm;  // weight of the RMSNorm over all heads [H*D]; undefined: sent as it is
  at::Tensor cos;   // split RoPE, [B or 1, H, S, D/2]; undefined: no rotation
  at::Tensor sin;
};

// Sums over the calls of one rank.
struct ExchangeStats {
  int64_t calls = 0;
  int64_t bytes = 0;        // to other ranks
  double seconds = 0;       // in calls, waiting included
  double wait_seconds = 0;  // of these, for peers
};

class HeadExchange {
 public:
  virtual ~HeadExchange() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // The tokens of the next calls, agreed by all ranks: collective, before the model runs, at every
  // step. Errors (agreed): ErrorKind::config, more than max_tokens; ErrorKind::memory, no room;
  // ErrorKind::internal, the ranks' counts differ.
  virtual void set_token_count(int64_t tokens, int64_t batch) = 0;
  virtual int64_t token_count() const = 0;
  int64_t local_tokens() const { return (token_count() + world_size() - 1) / world_size(); }

  // Tokens to heads: [B, S, W] each, W = H*D, -> [B, T, W/N] each, without padding. Up to three
  // tensors in one call (q, k, v; or k, v), of any dtype; widths may differ.
  virtual std::vector<at::Tensor> exchange(std::span<const at::Tensor> tokens) = 0;
  // The same of tokens that are normalised and rotated on the way, in one pass over the data.
  // Nothing where this exchange cannot do that: then the caller does it, and exchanges the result.
  virtual std::optional<std::vector<at::Tensor>> exchange_raw(
      [[maybe_unused]] std::span<const RawHeads> tokens, [[maybe_unused]] int64_t heads,
      [[maybe_unused]] double norm_eps) {
    return std::nullopt;
  }
  // Heads to tokens: [B, T, W/N] -> [B, S, W]; rows that are padding come back as zeros.
  virtual at::Tensor exchange_back(const at::Tensor& heads) = 0;
  // Heads of replicated tokens: [B, Ta, W/N] each -> [B, Ta, W] each, on every rank. Up to four
  // tensors in one call (k, v of two streams); numbers of tokens, widths and dtypes may differ.
  virtual std::vector<at::Tensor> all_gather_heads(std::span<const at::Tensor> heads) = 0;
  at::Tensor all_gather_heads(const at::Tensor& heads) {
    return all_gather_heads(std::span(&heads, 1)).front();
  }

  // Whether calls are work on the current stream alone, an even number of which a CUDA graph may
  // hold.
  virtual bool can_be_captured() const { return false; }
  // On a GPU: waits for the calls that were made. Errors: those of the calls.
  virtual ExchangeStats stats() const = 0;

  // Collective, the regular end.
  virtual void close() {}
};

// Errors (ErrorKind::config): "heads (H) must be divisible by world_size (N)", with the rank counts
// that are. For every attention whose heads are spread.
void check_heads(int64_t heads, int world_size);
// Errors (ErrorKind::config): more tokens than max_tokens. For the plan, before any work.
void check_token_count(int64_t tokens, int64_t max_tokens);

// Collective. Through shared memory for tensors of the host, through the peers' device memory for
// those of a GPU, or NCCL (gpu_head_exchange.h); nothing is exchanged by one rank.
// `communicator` must outlive the result. Every call of the exchange fails with
// ErrorKind::communication, naming the ranks, when a peer is gone or does not come in time; the
// exchange cannot be used again then.
std::unique_ptr<HeadExchange> make_head_exchange(Communicator& communicator,
                                                 const HeadExchangeOptions& options);

}  // namespace flotilla::comm
