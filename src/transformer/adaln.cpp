#include "transformer/adaln.h"

#include <ATen/ATen.h>

#include <cmath>

#include "ops/linear.h"

namespace flotilla::transformer {
namespace {

constexpr int64_t kEmbeddingChannels = 256;
constexpr double kMaxPeriod = 10000.0;

at::Tensor apply(const loader::Linear& layer, const at::Tensor& x) {
  return ops::linear(x, layer.weight, layer.bias);
}

}  // namespace

AdaLnWeights bind_adaln(loader::WeightBinder binder, int64_t dim, int64_t num_rows) {
  AdaLnWeights weights;
  weights.linear_1 = take_linear(binder, "emb.timestep_embedder.linear_1", kEmbeddingChannels, dim);
  weights.linear_2 = take_linear(binder, "emb.timestep_embedder.linear_2", dim, dim);
  weights.rows = take_linear(binder, "linear", dim, num_rows * dim);
  weights.num_rows = num_rows;
  return weights;
}

at::Tensor sinusoidal_embedding(const at::Tensor& timesteps) {
  const int64_t half = kEmbeddingChannels / 2;
  const auto options = timesteps.options().dtype(at::kFloat);
  const at::Tensor exponent =
      -std::log(kMaxPeriod) * at::arange(half, options) / static_cast<double>(half);
  const at::Tensor angles =
      timesteps.to(at::kFloat).unsqueeze(1) * exponent.exp().unsqueeze(0);  // [U, 128]
  return at::cat({angles.cos(), angles.sin()}, -1);
}

AdaLnOutput adaln(const AdaLnWeights& weights, const at::Tensor& timesteps) {
  const at::Tensor embedding =
      sinusoidal_embedding(timesteps).to(weights.linear_1.weight.scalar_type());
  const at::Tensor embedded = apply(weights.linear_2, at::silu(apply(weights.linear_1, embedding)));
  return {apply(weights.rows, at::silu(embedded)).unflatten(-1, {weights.num_rows, -1}), embedded};
}

}  // namespace flotilla::transformer
