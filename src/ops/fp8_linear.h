// Products of e4m3 numbers on tensor cores, accumulated in float32. Every row of the input and
// every row of the weight has a scale: number = e4m3 * scale, so that one large value costs its own
// row alone its accuracy. Inputs are quantised by what they hold, on CUDA within the kernel that
// makes them where there is one (layer_input.h); weights when they are loaded
// (loader/storage_policy.h). Elsewhere than on CUDA the same numbers are multiplied in float32: the
// oracle of the other path.
#pragma once

#include <ATen/core/Tensor.h>

namespace flotilla::ops {

struct LinearWeights;

// The largest number of e4m3.
constexpr double kLargestE4m3 = 448.0;

struct QuantisedRows {
  at::Tensor values;                  // e4m3 [..., in]
  at::Tensor scales;                  // float32 [n, 1], n rows in all
  at::ScalarType dtype = at::kFloat;  // of the numbers before, and of products

  bool defined() const { return values.defined(); }
};
// x [..., in]: the largest magnitude of a row becomes kLargestE4m3, then round to nearest. A row
// that is not finite has e4m3 NaNs, so its products are not finite either. On CUDA one kernel.
QuantisedRows quantise_rows(const at::Tensor& x);
// The same written with ATen on any device: what the kernels are held against, to the byte.
QuantisedRows quantise_rows_aten(const at::Tensor& x);
// float32 [..., in].
at::Tensor dequantise_rows(const QuantisedRows& rows);

// x [..., in] times the scaled weight transposed, plus the bias -> [..., out], of the type
// that x had (tensor cores: bfloat16). On CUDA: capability 8.9 or newer, current stream. Widths
// that tensor cores do not take (not a multiple of 16) run as elsewhere.
at::Tensor fp8_linear(const QuantisedRows& x, const LinearWeights& layer);
// The oracle, on any device.
at::Tensor fp8_linear_by_dequantising(const QuantisedRows& x, const LinearWeights& layer);

}  // namespace flotilla::ops
