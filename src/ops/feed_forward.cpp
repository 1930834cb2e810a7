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

}  // namespace

at::Tensor feed_forward(const FeedForwardWeights& weights, const at::Tensor& x) {
  const bool plain =
      weights.in.bias.defined() && weights.in.weight.scalar_type() == x.scalar_type();
  if (x.is_cuda() && x.dim() == 3 && plain && !FixedRowBlocks::active())
    return linear(hidden_in_one(weights.in, x), weights.out);
  const at::Tensor hidden =
      by_rows(linear(x, weights.in), [](const at::Tensor& rows) { return at::gelu(rows, "tanh"); });
  return linear(hidden, weights.out);
}

}  // namespace flotilla::ops
