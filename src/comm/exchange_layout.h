// Where each byte of a head exchange goes: integer arithmetic only, 64 bits wide, so that it can be
// tried with sizes that no test could allocate. Shapes: B samples, T tokens, N ranks, W bytes of a
// token over all heads; a rank's heads are W/N neighbouring bytes.
//   tokens -> heads: out_p[b, t, w] = in_r[b, t - r*S, p*W/N + w], r = t / S, S = ceil(T / N)
//   heads -> tokens: the inverse
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/block_copy.h"

namespace flotilla::comm {

// The tokens of each rank: S = ceil(T / N) a rank, fewer or none on the last ones.
struct TokenShards {
  int64_t tokens = 0;
  int64_t world_size = 1;

  int64_t padded_local() const { return (tokens + world_size - 1) / world_size; }
  int64_t begin(int64_t rank) const { return std::min(rank * padded_local(), tokens); }
  int64_t count(int64_t rank) const { return begin(rank + 1) - begin(rank); }
};

using kernels::BlockCopy;  // all numbers are bytes

// Rank `self`'s tokens [B, S, W] for the heads of `peer`, into that one's [B, T, W/N].
inline BlockCopy tokens_to_heads(const TokenShards& shards, int64_t batches, int64_t token_bytes,
                                 int64_t self, int64_t peer) {
  const int64_t head_bytes = token_bytes / shards.world_size;
  return {.batches = batches,
          .rows = shards.count(self),
          .row_bytes = head_bytes,
          .from = {peer * head_bytes, shards.padded_local() * token_bytes, token_bytes},
          .to = {shards.begin(self) * head_bytes, shards.tokens * head_bytes, head_bytes}};
}

// Rank `self`'s heads [B, T, W/N] of the tokens of `peer`, into that one's [B, S, W].
inline BlockCopy heads_to_tokens(const TokenShards& shards, int64_t batches, int64_t token_bytes,
                                 int64_t self, int64_t peer) {
  const int64_t head_bytes = token_bytes / shards.world_size;
  return {.batches = batches,
          .rows = shards.count(peer),
          .row_bytes = head_bytes,
          .from = {shards.begin(peer) * head_bytes, shards.tokens * head_bytes, head_bytes},
          .to = {self * head_bytes, shards.padded_local() * token_bytes, token_bytes}};
}

// Rank `self`'s heads [B, T, W/N] of all tokens, into every rank's [B, T, W].
inline BlockCopy heads_to_all(int64_t tokens, int64_t world_size, int64_t batches,
                              int64_t token_bytes, int64_t self) {
  const int64_t head_bytes = token_bytes / world_size;
  return {.batches = batches,
          .rows = tokens,
          .row_bytes = head_bytes,
          .from = {0, tokens * head_bytes, head_bytes},
          .to = {self * head_bytes, tokens * token_bytes, token_bytes}};
}

}  // namespace flotilla::comm
