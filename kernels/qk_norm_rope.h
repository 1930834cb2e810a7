// What comes between the projections and the dot product of attention, in one pass over the data:
// RMSNorm over all heads of a token, split RoPE, and either a store in place of the projections'
// layout or the write into the buffers of the ranks that own the heads (tokens to heads, as in
// all_to_all.h, without a copy in between). Arithmetic in float32, rounded once.
//   n = x / rms(x) * weight;  (a, b) = halves of a head of n
//   out = (a * cos - b * sin, b * cos + a * sin)
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/block_copy.h"
#include "kernels/data_type.h"
#include "kernels/exchange_peers.h"

namespace flotilla::kernels {

constexpr int kMaxNormRopeParts = 3;

// One of q, k and v.
struct NormRopePart {
  const void* from = nullptr;    // [batches, tokens, heads * head_dim]
  const void* weight = nullptr;  // [heads * head_dim]; null: neither normalised nor rotated
  bool rotated = false;
  void* out = nullptr;            // like `from`; of launch_qk_norm_rope()
  BlockPlace to_rank[kMaxRanks];  // in the receiver's slot; of launch_qk_norm_rope_send()
};

struct QkNormRopeArgs {
  int parts = 0;
  NormRopePart part[kMaxNormRopeParts];
  const void* cos = nullptr;  // [table_batches, heads, tokens, head_dim / 2], of rotated parts
  const void* sin = nullptr;
  int64_t table_batches = 1;  // 1: all samples have the same positions
  int64_t batches = 0;
  int64_t tokens = 0;       // of a sample
  int64_t live_tokens = 0;  // the first ones; those behind are padding and are left alone
  int64_t heads = 0;
  int64_t head_dim = 0;
  float eps = 0.0F;
  DataType dtype = DataType::float32;
};

// Whether the kernels take these sizes and pointers.
bool can_qk_norm_rope(const QkNormRopeArgs& args);

// Asynchronous on `stream`; capturable.
cudaError_t launch_qk_norm_rope(const QkNormRopeArgs& args, cudaStream_t stream);
// The heads of rank r are the r-th of N equal parts. Ends as launch_all_to_all() does.
cudaError_t launch_qk_norm_rope_send(const QkNormRopeArgs& args, const ExchangePeers& peers,
                                     cudaStream_t stream);

}  // namespace flotilla::kernels
