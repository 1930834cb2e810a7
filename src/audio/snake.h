// The activation of the LTX-2.3 vocoder: SnakeBeta, x + sin^2(alpha x) / beta, between a doubling
// and a halving of the rate, so that the overtones it makes do not fold back. Filters come from the
// file. Source: the reference's vocoder.py (Activation1d, SnakeBeta), which follows BigVGAN v2.
#pragma once

#include <ATen/core/Tensor.h>

#include "loader/weight_arena.h"

namespace flotilla::audio {

struct AntiAliasedSnake {
  // As in the file.
  at::Tensor log_alpha, log_beta;     // [C]
  at::Tensor up_filter, down_filter;  // [1, 1, 12]
  // Made of them by prepare().
  at::Tensor alpha, inverse_beta;  // [C, 1, 1]
  at::Tensor up_bank, down_bank;   // [2, 1, 7], [1, 2, 7]

  // Derives the second half; once, after the weights are loaded.
  void prepare();
};

// Binds "act.alpha", "act.beta", "upsample.filter" and "downsample.lowpass.filter".
AntiAliasedSnake bind_snake(loader::WeightBinder binder, int64_t channels);

// x [B, C, L] float -> [B, C, L]. On CUDA one kernel.
at::Tensor apply_snake(const at::Tensor& x, const AntiAliasedSnake& snake);
// The same written with ATen on any device: what the kernel is held against.
at::Tensor apply_snake_aten(const at::Tensor& x, const AntiAliasedSnake& snake);

}  // namespace flotilla::audio
