#include "ops/fp8_linear.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "ops/linear.h"

namespace flotilla::ops {
namespace {

// Tensor cores take rows of whole 16-byte words.
constexpr int64_t kWidthStep = 16;

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

bool fits_tensor_cores(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cuda() && x.scalar_type() == at::kBFloat16 && weight.size(0) % kWidthStep == 0 &&
         weight.size(1) % kWidthStep == 0;
}

std::vector<int64_t> output_shape(const at::Tensor& x, const at::Tensor& weight) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return shape;
}

}  // namespace

QuantisedRows quantise_rows(const at::Tensor& rows) {
  const at::Tensor wide = rows.to(at::kFloat);
  // A row of zeros keeps a scale that can be divided by.
  const at::Tensor scales =
      wide.abs().amax(/*dim=*/-1, /*keepdim=*/true).clamp_min(1e-12) / kLargestE4m3;  // [n, 1]
  return {(wide / scales).clamp(-kLargestE4m3, kLargestE4m3).to(at::kFloat8_e4m3fn), scales};
}

at::Tensor dequantise_rows(const QuantisedRows& rows) {
  return rows.values.to(at::kFloat) * rows.scales;
}

at::Tensor fp8_linear_by_dequantising(const at::Tensor& x, const LinearWeights& layer) {
  const at::Tensor input = dequantise_rows(quantise_rows(x.reshape({-1, x.size(-1)})));
  const at::Tensor weight = dequantise_rows({layer.weight, layer.row_scales.unsqueeze(1)});
  at::Tensor out = at::matmul(input, weight.t());  // [n, out]
  if (layer.bias.defined()) out.add_(layer.bias);
  return out.to(x.scalar_type()).view(output_shape(x, layer.weight));
}

at::Tensor fp8_linear(const at::Tensor& x, const LinearWeights& layer) {
  FLOTILLA_ASSERT(layer.weight.scalar_type() == at::kFloat8_e4m3fn && layer.row_scales.defined());
  if (!fits_tensor_cores(x, layer.weight)) return fp8_linear_by_dequantising(x, layer);
  const QuantisedRows input = quantise_rows(x.reshape({-1, x.size(-1)}));
  const at::Tensor out =
      at::_scaled_mm(input.values, layer.weight.t(), input.scales, layer.row_scales.unsqueeze(0),
                     optional_of(layer.bias), /*scale_result=*/std::nullopt, at::kBFloat16,
                     /*use_fast_accum=*/true);  // [n, out]
  return out.view(output_shape(x, layer.weight));
}

}  // namespace flotilla::ops
