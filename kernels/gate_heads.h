// The gate of attention: every head of a token times 2 * sigmoid(logit). In place or not;
// arithmetic in float32, rounded once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/data_type.h"

namespace flotilla::kernels {

struct GateHeadsArgs {
  const void* heads_out = nullptr;  // [tokens, heads * head_dim]
  const void* logits = nullptr;     // [tokens, heads]
  void* out = nullptr;              // like heads_out, may be it
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  DataType dtype = DataType::float32;
};

// Asynchronous on `stream`; capturable. 16-byte accesses where head_dim and pointers allow.
cudaError_t launch_gate_heads(const GateHeadsArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
