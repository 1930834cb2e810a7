// The element-wise chains of a Gemma 3 layer, each in one pass. Its norms multiply by (1 + weight)
// in float32 before they round; arithmetic is float32 throughout, each result is rounded once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/data_type.h"

namespace flotilla::kernels {

// The border between two halves of a layer:
//   x' = x + update / rms(update) * (1 + update_weight)     (where there is an update)
//   n  = x' / rms(x') * (1 + norm_weight)                   (where norm_out is wanted)
struct AddNormArgs {
  const void* x = nullptr;              // [tokens, dim]
  const void* update = nullptr;         // [tokens, dim]; null: x' is x
  const void* update_weight = nullptr;  // [dim]
  void* sum = nullptr;                  // x' [tokens, dim], may be x; not written without an update
  const void* norm_weight = nullptr;    // [dim]
  void* norm_out = nullptr;             // n [tokens, dim]; null: not wanted
  int64_t tokens = 0;
  int64_t dim = 0;
  float eps = 0.0F;
  DataType dtype = DataType::float32;
};
// Asynchronous on `stream`; capturable. cudaErrorInvalidValue for a dim that a block cannot keep in
// registers; see add_norm_takes().
cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream);
bool add_norm_takes(const AddNormArgs& args);

// RMSNorm of each head by itself and rotation of its halves, in place or not:
//   n = x / rms(x) * (1 + weight);  out = n * cos + [-n_high, n_low] * sin.
struct HeadNormRotateArgs {
  const void* x = nullptr;       // [tokens, heads, head_dim]
  const void* weight = nullptr;  // [head_dim]
  const void* cos = nullptr;     // [positions, head_dim]; token t is at position t % positions
  const void* sin = nullptr;
  void* out = nullptr;  // [tokens, heads, head_dim]
  int64_t tokens = 0;
  int64_t positions = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  float eps = 0.0F;
  DataType dtype = DataType::float32;
};
// As above.
cudaError_t launch_head_norm_rotate(const HeadNormRotateArgs& args, cudaStream_t stream);
bool head_norm_rotate_takes(const HeadNormRotateArgs& args);

// gelu(gate) * up with the tanh form of GELU, over `count` elements; out may be either.
struct GeluProductArgs {
  const void* gate = nullptr;
  const void* up = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  DataType dtype = DataType::float32;
};
cudaError_t launch_gelu_product(const GeluProductArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
