#include "ops/feed_forward.h"

#include <ATen/ATen.h>

#include "ops/linear.h"

namespace flotilla::ops {

at::Tensor feed_forward(const FeedForwardWeights& weights, const at::Tensor& x) {
  const at::Tensor hidden = by_rows(linear(x, weights.in_weight, weights.in_bias),
                                    [](const at::Tensor& rows) { return at::gelu(rows, "tanh"); });
  return linear(hidden, weights.out_weight, weights.out_bias);
}

}  // namespace flotilla::ops
