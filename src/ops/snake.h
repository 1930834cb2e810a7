// The vocoder's anti-aliased activation in one kernel; formula and layout: kernels/snake.h. Its
// twin, written with ATen, is audio::apply_snake().
#pragma once

#include <ATen/core/Tensor.h>

namespace flotilla::ops {

struct SnakeFilters {
  at::Tensor alpha, inverse_beta;  // [C, ...], C values
  at::Tensor up, down;             // [2, 1, 7], [1, 2, 7]
};

// Where there is a kernel for x: float32 on CUDA.
bool has_snake_kernel(const at::Tensor& x);
// x [B, C, L] -> [B, C, L]. Errors (ErrorKind::internal): no kernel for x.
at::Tensor fused_snake(const at::Tensor& x, const SnakeFilters& filters);

}  // namespace flotilla::ops
