#include "ops/layer_input.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "ops/cuda_launch.h"

namespace flotilla::ops {

InputForms forms_read_by(std::initializer_list<const LinearWeights*> layers) {
  if (FixedRowBlocks::active()) return {};
  InputForms forms{.plain = false, .quantised = false};
  for (const LinearWeights* layer : layers) {
    if (!layer->weight.defined()) continue;
    (layer->row_scales.defined() ? forms.quantised : forms.plain) = true;
  }
  return forms;
}

LayerInput make_layer_input(const at::Tensor& tokens, InputForms forms) {
  LayerInput input;
  if (forms.plain) input.plain = tokens;
  if (forms.quantised) input.quantised = quantise_rows(tokens);
  return input;
}

at::Tensor linear(const LayerInput& x, const LinearWeights& layer) {
  if (layer.row_scales.defined() && x.quantised.defined()) return fp8_linear(x.quantised, layer);
  FLOTILLA_ASSERT(x.plain.defined());
  return linear(x.plain, layer);
}

LayerInput gelu(const at::Tensor& x, InputForms forms) {
#ifdef FLOTILLA_CUDA
  if (cuda::has_kernels_for(x) && forms.quantised && !forms.plain) {
    LayerInput input;
    input.quantised = cuda::gelu_and_quantise(x);
    return input;
  }
#endif
  return make_layer_input(by_rows(x, [](const at::Tensor& rows) { return at::gelu(rows, "tanh"); }),
                          forms);
}

}  // namespace flotilla::ops
