// The element-wise chains of a Gemma 3 layer: norms that multiply by (1 + weight) in float32 before
// they round, unlike in other models. One kernel each on CUDA, ATen elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

namespace flotilla::ops {

// x / rms(x) * (1 + weight) over the last dimension. x: [..., D], weight: [D].
at::Tensor gemma_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

// x + gemma_rms_norm(update, update_weight), and gemma_rms_norm(., norm_weight) of that.
struct GemmaResidual {
  at::Tensor sum;
  at::Tensor normed;  // undefined without a norm_weight
};
// x, update: [B, T, D].
GemmaResidual gemma_add_norm(const at::Tensor& x, const at::Tensor& update,
                             const at::Tensor& update_weight, double eps,
                             const at::Tensor& norm_weight);

// Each head normed by itself and rotated; pairs are (i, i + head_dim / 2). x: [B, T, H * head_dim];
// cos, sin: [T, head_dim] -> [B, H, T, head_dim].
at::Tensor gemma_norm_rotate(const at::Tensor& x, int64_t heads, const at::Tensor& weight,
                             double eps, const at::Tensor& cos, const at::Tensor& sin);

// gelu(gate) * up with the tanh form of GELU; all of one shape.
at::Tensor gelu_product(const at::Tensor& gate, const at::Tensor& up);

// The same written with ATen on any device: what the kernels are held against.
at::Tensor gemma_rms_norm_aten(const at::Tensor& x, const at::Tensor& weight, double eps);
GemmaResidual gemma_add_norm_aten(const at::Tensor& x, const at::Tensor& update,
                                  const at::Tensor& update_weight, double eps,
                                  const at::Tensor& norm_weight);
at::Tensor gemma_norm_rotate_aten(const at::Tensor& x, int64_t heads, const at::Tensor& weight,
                                  double eps, const at::Tensor& cos, const at::Tensor& sin);
at::Tensor gelu_product_aten(const at::Tensor& gate, const at::Tensor& up);

}  // namespace flotilla::ops
