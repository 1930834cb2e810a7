#include "ops/feed_forward.h"

#include <ATen/ATen.h>

namespace flotilla::ops {

at::Tensor feed_forward(const FeedForwardWeights& weights, const at::Tensor& x) {
  const auto bias = [](const at::Tensor& b) {
    return b.defined() ? std::optional(b) : std::nullopt;
  };
  const at::Tensor hidden =
      at::gelu(at::linear(x, weights.in_weight, bias(weights.in_bias)), "tanh");
  return at::linear(hidden, weights.out_weight, bias(weights.out_bias));
}

}  // namespace flotilla::ops
