// AdaLN-zero in one pass over the tokens: out = x / rms(x) * (1 + scale[row]) + shift[row], where
// the row of a token comes from an index or from its sample. Arithmetic in float32, rounded once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/data_type.h"

namespace flotilla::kernels {

struct RmsNormModulateArgs {
  const void* x = nullptr;                // [tokens, dim]
  const void* scale = nullptr;            // [rows, dim]
  const void* shift = nullptr;            // [rows, dim]
  void* out = nullptr;                    // [tokens, dim], may be x
  const int64_t* row_of_token = nullptr;  // [tokens]; null: row = token / tokens_per_row
  int64_t tokens = 0;
  int64_t tokens_per_row = 1;
  int64_t dim = 0;
  float eps = 0.0F;
  DataType dtype = DataType::float32;
};

// Asynchronous on `stream`; capturable. Any dim; 16-byte accesses where dim and pointers allow.
cudaError_t launch_rms_norm_modulate(const RmsNormModulateArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
