#include "ops/fp8_linear.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "ops/cuda_launch.h"
#include "ops/linear.h"

namespace flotilla::ops {
namespace {

// Tensor cores take rows of whole 16-byte words, any number of them.
constexpr int64_t kWidthStep = 16;
// Partial sums stay in the tensor cores' own accumulators, of about 14 bits, over the whole row.
// Moving them to float32 now and then costs 6 to 11 % of the rate (docs/precision.md) and saves
// errors far below those of the e4m3 numbers that are summed.
constexpr bool kFastAccumulation = true;

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

bool fits_tensor_cores(const QuantisedRows& x, const at::Tensor& weight) {
  return x.values.is_cuda() && x.dtype == at::kBFloat16 && weight.size(0) % kWidthStep == 0 &&
         weight.size(1) % kWidthStep == 0;
}

std::vector<int64_t> output_shape(const QuantisedRows& x, const at::Tensor& weight) {
  std::vector<int64_t> shape = x.values.sizes().vec();
  shape.back() = weight.size(0);
  return shape;
}

at::Tensor values_of_rows(const QuantisedRows& x) {
  return x.values.view({-1, x.values.size(-1)});  // [n, in]
}

}  // namespace

QuantisedRows quantise_rows_aten(const at::Tensor& x) {
  const at::Tensor wide = x.reshape({-1, x.size(-1)}).to(at::kFloat);
  // A row of zeros keeps a scale that can be divided by. A factor in place of the quotient, because
  // devices agree on it to the bit.
  const at::Tensor scales =
      wide.abs().amax(/*dim=*/-1, /*keepdim=*/true).clamp_min(1e-12) * (1.0 / kLargestE4m3);
  const at::Tensor values = (wide * scales.reciprocal()).clamp(-kLargestE4m3, kLargestE4m3);
  return {values.to(at::kFloat8_e4m3fn).view(x.sizes()), scales, x.scalar_type()};
}

QuantisedRows quantise_rows(const at::Tensor& x) {
#ifdef FLOTILLA_CUDA
  if (cuda::has_kernels_for(x)) return cuda::quantise_rows(x);
#endif
  return quantise_rows_aten(x);
}

at::Tensor dequantise_rows(const QuantisedRows& rows) {
  return (values_of_rows(rows).to(at::kFloat) * rows.scales).view(rows.values.sizes());
}

at::Tensor fp8_linear_by_dequantising(const QuantisedRows& x, const LinearWeights& layer) {
  const at::Tensor input = dequantise_rows(x).view({-1, x.values.size(-1)});  // [n, in]
  const at::Tensor weight = dequantise_rows({layer.weight, layer.row_scales.unsqueeze(1)});
  at::Tensor out = at::matmul(input, weight.t());  // [n, out]
  if (layer.bias.defined()) out.add_(layer.bias);
  return out.to(x.dtype).view(output_shape(x, layer.weight));
}

at::Tensor fp8_linear(const QuantisedRows& x, const LinearWeights& layer) {
  FLOTILLA_ASSERT(layer.weight.scalar_type() == at::kFloat8_e4m3fn && layer.row_scales.defined());
  if (!fits_tensor_cores(x, layer.weight)) return fp8_linear_by_dequantising(x, layer);
  const at::Tensor out = at::_scaled_mm(values_of_rows(x), layer.weight.t(), x.scales,
                                        layer.row_scales.unsqueeze(0), optional_of(layer.bias),
                                        /*scale_result=*/std::nullopt, x.dtype, kFastAccumulation);
  return out.view(output_shape(x, layer.weight));  // [n, out] -> [..., out]
}

}  // namespace flotilla::ops
