// The kernels of kernels/ on tensors: checks, output allocation, the current stream. Only in CUDA
// builds.
#pragma once

#ifdef FLOTILLA_CUDA

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "ops/fp8_linear.h"
#include "ops/norm.h"
#include "ops/rope.h"

namespace flotilla::ops::cuda {

// Of a GPU, in float32 or bfloat16.
bool has_kernels_for(const at::Tensor& x);

// `update` undefined: x itself is normalised.
Residual residual_norm_modulate(const at::Tensor& x, const at::Tensor& update,
                                const TokenGate& gate, double eps,
                                std::span<const TokenModulation> modulations);

LayerInput modulate(const at::Tensor& x, const TokenModulation& modulation);

// heads_out [B, T, H*D] * 2 * sigmoid(logits [B, T, H]).
at::Tensor gate_heads(const at::Tensor& heads_out, const at::Tensor& logits);

// x [..., in] as ops::quantise_rows() does it; the results of GELU and of gate_heads() likewise,
// without these being written.
QuantisedRows quantise_rows(const at::Tensor& x);
QuantisedRows gelu_and_quantise(const at::Tensor& x);
QuantisedRows gate_and_quantise(const at::Tensor& heads_out, const at::Tensor& logits);

struct NormRopeInput {
  const at::Tensor& x;       // [B, T, H*D]
  const at::Tensor& weight;  // [H*D]
};
// RMSNorm over all heads and split RoPE of tensors of one shape with one table, in one launch,
// which reads the angles once. Empty where the kernel does not take the sizes.
std::vector<at::Tensor> norm_rope(std::span<const NormRopeInput> inputs, double eps, int64_t heads,
                                  const RopeTable& rope);

}  // namespace flotilla::ops::cuda

#endif
