// The element-wise chain between two layers of a block in one pass over the tokens:
//   x'  = x + update * gate[row]                      (where there is an update)
//   n   = x' / rms(x')                                (or x' itself, without the norm)
//   y_i = n * (1 + scale_i[row]) + shift_i[row]       (none, one or two of them)
// where the row of a token comes from an index or from its sample. Arithmetic in float32, each
// result rounded once; n is taken of the rounded x'. What 8-bit products read leaves as e4m3 with a
// scale a token (quantise_rows.h), made of the rounded y_i; y_i itself only where it is read too.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/data_type.h"

namespace flotilla::kernels {

constexpr int kMaxModulations = 2;

struct ModulationArgs {
  const void* scale = nullptr;  // [rows, dim], rows `row_stride` elements apart
  const void* shift = nullptr;
  int64_t row_stride = 0;
  void* out = nullptr;        // [tokens, dim]; null: not written
  uint8_t* values = nullptr;  // e4m3 [tokens, dim]; null: not written
  float* scales = nullptr;    // [tokens], of `values`
};

struct ResidualNormModulateArgs {
  const void* x = nullptr;       // [tokens, dim]
  const void* update = nullptr;  // [tokens, dim]; null: x' is x
  const void* gate = nullptr;    // [rows, dim]; null: 1
  int64_t gate_row_stride = 0;
  void* sum = nullptr;  // x' [tokens, dim], may be x; not written without an update
  int modulations = 0;
  ModulationArgs modulation[kMaxModulations];
  const int64_t* row_of_token = nullptr;  // [tokens]; null: row = token / tokens_per_row
  int64_t tokens = 0;
  int64_t tokens_per_row = 1;       // of scale and shift
  int64_t gate_tokens_per_row = 1;  // of the gate, which has no index then
  bool gate_is_indexed = false;     // the gate's rows are those of row_of_token
  int64_t dim = 0;
  bool normed = true;
  float eps = 0.0F;
  DataType dtype = DataType::float32;
};

// Asynchronous on `stream`; capturable. Any dim; 16-byte accesses where dim and pointers allow.
cudaError_t launch_residual_norm_modulate(const ResidualNormModulateArgs& args,
                                          cudaStream_t stream);

}  // namespace flotilla::kernels
