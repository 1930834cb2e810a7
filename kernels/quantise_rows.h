// Rows of numbers as e4m3 with a float32 scale a row, in one pass: number = e4m3 * scale, the
// largest magnitude of the row becomes 448. Where the numbers are made by a function of elements,
// that comes first, in the same pass; its results are rounded to the type of the input, so that the
// e4m3 numbers are those of the two steps apart.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/data_type.h"

namespace flotilla::kernels {

enum class RowFunction {
  none,
  gelu,        // the tanh approximation
  gate_heads,  // every head times 2 * sigmoid(its logit)
};

struct QuantiseRowsArgs {
  const void* x = nullptr;  // [rows, dim]
  RowFunction function = RowFunction::none;
  const void* gate_logits = nullptr;  // [rows, heads], of gate_heads
  int64_t heads = 1;                  // dim is heads * head_dim
  uint8_t* values = nullptr;          // e4m3 [rows, dim]
  float* scales = nullptr;            // [rows]
  int64_t rows = 0;
  int64_t dim = 0;
  DataType dtype = DataType::float32;
};

// Asynchronous on `stream`; capturable. Any dim; 16-byte loads where dim, head_dim and pointers
// allow.
cudaError_t launch_quantise_rows(const QuantiseRowsArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
