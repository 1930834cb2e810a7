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

LayerInput modulate(const at::Tensor& x, const TokenModulation& modulation) {
#ifdef FLOTILLA_CUDA
  if (cuda::has_kernels_for(x)) return cuda::modulate(x, modulation);
#endif
  return make_layer_input(modulate(x, expand_rows(modulation.scale, modulation.row_of_token),
                                   expand_rows(modulation.shift, modulation.row_of_token)),
                          modulation.forms);
}

at::Tensor rms_norm_modulate_aten(const at::Tensor& x, double eps,
                                  const TokenModulation& modulation) {
  return modulate(rms_norm(x, eps), expand_rows(modulation.scale, modulation.row_of_token),
                  expand_rows(modulation.shift, modulation.row_of_token));
}

LayerInput rms_norm_modulate(const at::Tensor& x, double eps, const TokenModulation& modulation) {
#ifdef FLOTILLA_CUDA
  if (cuda::has_kernels_for(x))
    return cuda::residual_norm_modulate(x, {}, {}, eps, {&modulation, 1}).modulated.front();
#endif
  return make_layer_input(rms_norm_modulate_aten(x, eps, modulation), modulation.forms);
}

Residual residual_norm_modulate_aten(const at::Tensor& x, const at::Tensor& update,
                                     const TokenGate& gate, double eps,
                                     std::span<const TokenModulation> modulations) {
  Residual residual;
  residual.x =
      x + (gate.rows.defined() ? update * expand_rows(gate.rows, gate.row_of_token) : update);
  for (const TokenModulation& modulation : modulations)
    residual.modulated.push_back(
        make_layer_input(rms_norm_modulate_aten(residual.x, eps, modulation), modulation.forms));
  return residual;
}

Residual residual_norm_modulate(const at::Tensor& x, const at::Tensor& update,
                                const TokenGate& gate, double eps,
                                std::span<const TokenModulation> modulations) {
#ifdef FLOTILLA_CUDA
  if (cuda::has_kernels_for(x))
    return cuda::residual_norm_modulate(x, update, gate, eps, modulations);
#endif
  return residual_norm_modulate_aten(x, update, gate, eps, modulations);
}

}  // namespace flotilla::ops
