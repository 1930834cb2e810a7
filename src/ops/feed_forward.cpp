#include "ops/feed_forward.h"

#include <ATen/ATen.h>

namespace flotilla::ops {

namespace {

// The first layer and the GELU as one product with an epilogue (cuBLASLt).
at::Tensor hidden_in_one(const LinearWeights& layer, const at::Tensor& x) {
  const at::Tensor rows = x.flatten(0, -2);
  return at::_addmm_activation(layer.bias, rows, layer.weight.t(), 1, 1, /*use_gelu=*/true)
      .view({x.size(0), x.size(1), -1});
}

bool can_be_one(const LinearWeights& layer, const at::Tensor& x) {
  return x.defined() && x.is_cuda() && x.dim() == 3 && layer.bias.defined() &&
         layer.weight.scalar_type() == x.scalar_type() && !FixedRowBlocks::active();
}

}  // namespace

at::Tensor feed_forward(const FeedForwardWeights& weights, const LayerInput& x) {
  const InputForms forms = forms_read_by({&weights.out});
  if (can_be_one(weights.in, x.plain))
    return linear(make_layer_input(hidden_in_one(weights.in, x.plain), forms), weights.out);
  return linear(gelu(linear(x, weights.in), forms), weights.out);
}

}  // namespace flotilla::ops
