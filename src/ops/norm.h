// Normalisations of the transformers and what stands around them. An element-wise chain that a
// fused CUDA kernel replaces is one function here.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "ops/layer_input.h"

namespace flotilla::ops {

// x / rms(x) over the last dimension, times `weight` [D] when it is defined. x: [..., D].
at::Tensor rms_norm(const at::Tensor& x, double eps, const at::Tensor& weight = {});

// Scale and shift as one row a distinct timestep, and which row a token takes (token_rows.h).
struct TokenModulation {
  at::Tensor scale;         // [U, D]
  at::Tensor shift;         // [U, D]
  at::Tensor row_of_token;  // int64 [B, T]; undefined: one row a sample
  InputForms forms;         // in which the result is read
};

// What an update of the tokens is multiplied by.
struct TokenGate {
  at::Tensor rows;          // [U, D]; undefined: 1
  at::Tensor row_of_token;  // as in TokenModulation
};

// AdaLN-zero: rms_norm(x) * (1 + scale) + shift. x: [B, T, D]. On CUDA one kernel, which rounds
// once where this chain rounds four times, and writes the forms that are read.
LayerInput rms_norm_modulate(const at::Tensor& x, double eps, const TokenModulation& modulation);
// The plain form written with ATen on any device: what the kernel is held against.
at::Tensor rms_norm_modulate_aten(const at::Tensor& x, double eps,
                                  const TokenModulation& modulation);

// The chain between two layers of a block.
struct Residual {
  at::Tensor x;                       // x + update * gate
  std::vector<LayerInput> modulated;  // of that, rms_norm_modulate() with each modulation
};
// x, update: [B, T, D]. Modulations, two at most, and an index of the gate share one row_of_token.
// On CUDA one kernel.
Residual residual_norm_modulate(const at::Tensor& x, const at::Tensor& update,
                                const TokenGate& gate, double eps,
                                std::span<const TokenModulation> modulations = {});
Residual residual_norm_modulate_aten(const at::Tensor& x, const at::Tensor& update,
                                     const TokenGate& gate, double eps,
                                     std::span<const TokenModulation> modulations = {});

// x [B, T, D] * (1 + scale) + shift, rows as in TokenModulation. On CUDA one kernel.
LayerInput modulate(const at::Tensor& x, const TokenModulation& modulation);
// x * (1 + scale) + shift.
at::Tensor modulate(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift);

}  // namespace flotilla::ops
