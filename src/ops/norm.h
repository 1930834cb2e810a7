// Normalisations of the transformers and what stands around them. An element-wise chain that a
// fused CUDA kernel replaces is one function here.
#pragma once

#include <ATen/core/Tensor.h>

namespace flotilla::ops {

// x / rms(x) over the last dimension, times `weight` [D] when it is defined. x: [..., D].
at::Tensor rms_norm(const at::Tensor& x, double eps, const at::Tensor& weight = {});

// Scale and shift as one row a distinct timestep, and which row a token takes (token_rows.h).
struct TokenModulation {
  at::Tensor scale;         // [U, D]
  at::Tensor shift;         // [U, D]
  at::Tensor row_of_token;  // int64 [B, T]; undefined: one row a sample
};

// AdaLN-zero: rms_norm(x) * (1 + scale) + shift. x: [B, T, D]. On CUDA one kernel, which rounds
// once where this chain rounds four times.
at::Tensor rms_norm_modulate(const at::Tensor& x, double eps, const TokenModulation& modulation);
// The same written with ATen on any device: what the kernel is held against.
at::Tensor rms_norm_modulate_aten(const at::Tensor& x, double eps,
                                  const TokenModulation& modulation);

// x * (1 + scale) + shift.
at::Tensor modulate(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift);

}  // namespace flotilla::ops
