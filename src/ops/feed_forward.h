// Two linear layers with a tanh-approximated GELU between them.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/layer_input.h"
#include "ops/linear.h"

namespace flotilla::ops {

struct FeedForwardWeights {
  LinearWeights in, out;  // biases undefined where the model has none
};

// x: [..., dim] -> [..., dim].
at::Tensor feed_forward(const FeedForwardWeights& weights, const LayerInput& x);

// Names "net.0.proj" and "net.2", hidden width mult * dim. Binder is loader::WeightBinder.
template <typename Binder>
FeedForwardWeights bind_feed_forward(Binder binder, int64_t dim, int64_t mult = 4,
                                     bool bias = true) {
  FeedForwardWeights weights;
  weights.in = bind_linear(binder, "net.0.proj", dim, mult * dim, bias);
  weights.out = bind_linear(binder, "net.2", mult * dim, dim, bias);
  return weights;
}

}  // namespace flotilla::ops
