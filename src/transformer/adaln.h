// AdaLN-single (PixArt-alpha, arXiv 2310.00426, section 2.3): a sinusoidal timestep embedding
// through a small network gives the modulation rows that all blocks share.
#pragma once

#include <ATen/core/Tensor.h>

#include "loader/weight_arena.h"

namespace flotilla::transformer {

struct AdaLnWeights {
  loader::Linear linear_1;  // 256 -> dim
  loader::Linear linear_2;  // dim -> dim
  loader::Linear rows;      // dim -> num_rows * dim
  int64_t num_rows = 0;
};

AdaLnWeights bind_adaln(loader::WeightBinder binder, int64_t dim, int64_t num_rows);

struct AdaLnOutput {
  at::Tensor rows;      // [U, num_rows, dim]
  at::Tensor embedded;  // [U, dim], before the last layer
};

// timesteps: float32 [U], already multiplied by the model's scale.
AdaLnOutput adaln(const AdaLnWeights& weights, const at::Tensor& timesteps);

// [U] -> [U, 256]: cosines first, frequencies 10000^(-i / 128), in float32.
at::Tensor sinusoidal_embedding(const at::Tensor& timesteps);

}  // namespace flotilla::transformer
