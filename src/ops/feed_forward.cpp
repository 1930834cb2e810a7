#include "ops/feed_forward.h"

#include <ATen/ATen.h>

namespace flotilla::ops {

at::Tensor feed_forward(const FeedForwardWeights& weights, const at::Tensor& x) {
  const at::Tensor hidden =
      by_rows(linear(x, weights.in), [](const at::Tensor& rows) { return at::gelu(rows, "tanh"); });
  return linear(hidden, weights.out);
}

}  // namespace flotilla::ops
