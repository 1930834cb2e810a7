// Two linear layers with a tanh-approximated GELU between them.
#pragma once

#include <ATen/core/Tensor.h>

namespace flotilla::ops {

struct FeedForwardWeights {
  at::Tensor in_weight, in_bias, out_weight, out_bias;  // biases undefined where the model has none
};

// x: [..., dim] -> [..., dim].
at::Tensor feed_forward(const FeedForwardWeights& weights, const at::Tensor& x);

// Names "net.0.proj" and "net.2", hidden width mult * dim. Binder is loader::WeightBinder.
template <typename Binder>
FeedForwardWeights bind_feed_forward(Binder binder, int64_t dim, int64_t mult = 4,
                                     bool bias = true) {
  FeedForwardWeights weights;
  weights.in_weight = binder.take("net.0.proj.weight", {mult * dim, dim});
  weights.out_weight = binder.take("net.2.weight", {dim, mult * dim});
  if (bias) {
    weights.in_bias = binder.take("net.0.proj.bias", {mult * dim});
    weights.out_bias = binder.take("net.2.bias", {dim});
  }
  return weights;
}

}  // namespace flotilla::ops
