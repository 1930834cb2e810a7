#include "ops/norm.h"

#include <ATen/ATen.h>

#include "ops/cuda_launch.h"
#include "ops/token_rows.h"

namespace flotilla::ops {

at::Tensor rms_norm(const at::Tensor& x, double eps, const at::Tensor& weight) {
  const std::optional<at::Tensor> scale = weight.defined() ? std::optional(weight) : std::nullopt;
  return at::rms_norm(x, {x.size(-1)}, scale, eps);
}

at::Tensor modulate(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
  return x * (1 + scale) + shift;
}

at::Tensor rms_norm_modulate_aten(const at::Tensor& x, double eps,
                                  const TokenModulation& modulation) {
  return modulate(rms_norm(x, eps), expand_rows(modulation.scale, modulation.row_of_token),
                  expand_rows(modulation.shift, modulation.row_of_token));
}

at::Tensor rms_norm_modulate(const at::Tensor& x, double eps, const TokenModulation& modulation) {
#ifdef FLOTILLA_CUDA
  if (x.is_cuda()) return cuda::rms_norm_modulate(x, eps, modulation);
#endif
  return rms_norm_modulate_aten(x, eps, modulation);
}

}  // namespace flotilla::ops
