// The generator network of both vocoder families: mel frames -> samples of one rate.
// Source: the reference's vocoder.py (Vocoder, AMPBlock1) and resnet.py (ResBlock1).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "audio/snake.h"
#include "audio/vocoder_config.h"
#include "loader/weight_arena.h"

namespace flotilla::audio {

// weight [out, in, kernel] ([in, out, kernel] when transposed), bias [out] or undefined.
struct Conv1d {
  at::Tensor weight;
  at::Tensor bias;
};

// Three times: activation, dilated convolution, activation, convolution, sum with the input.
struct ResidualBlock {
  std::array<Conv1d, 3> dilated, plain;
  std::array<int64_t, 3> dilations{};
  // Family amp only; the other one has a leaky ReLU, without weights.
  std::array<AntiAliasedSnake, 3> before_dilated, before_plain;
};

struct GeneratorWeights {
  Conv1d conv_pre, conv_post;
  std::vector<Conv1d> upsamplers;                  // one a level, transposed
  std::vector<std::vector<ResidualBlock>> blocks;  // [level][block]
  AntiAliasedSnake final_snake;                    // family amp only

  // See AntiAliasedSnake::prepare().
  void prepare(GeneratorFamily family);
};

GeneratorWeights bind_generator(const GeneratorConfig& config, loader::WeightBinder binder);

// mel [B, 2, bins, frames] float -> samples [B, 2, frames * samples_per_frame].
at::Tensor run_generator(const GeneratorConfig& config, const GeneratorWeights& weights,
                         const at::Tensor& mel);

}  // namespace flotilla::audio
