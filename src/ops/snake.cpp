#include "ops/snake.h"

#include <ATen/ATen.h>

#include "base/error.h"

#ifdef FLOTILLA_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/snake.h"
#endif

namespace flotilla::ops {

#ifdef FLOTILLA_CUDA

bool has_snake_kernel(const at::Tensor& x) {
  return x.is_cuda() && x.scalar_type() == at::kFloat && x.numel() > 0;
}

at::Tensor fused_snake(const at::Tensor& x, const SnakeFilters& filters) {
  FLOTILLA_ASSERT(has_snake_kernel(x) && x.dim() == 3);
  FLOTILLA_ASSERT(filters.alpha.numel() == x.size(1) && filters.inverse_beta.numel() == x.size(1));
  FLOTILLA_ASSERT(filters.up.numel() == 2 * kernels::kSnakeTaps &&
                  filters.down.numel() == 2 * kernels::kSnakeTaps);
  const at::Tensor input = x.contiguous();
  const at::Tensor out = at::empty_like(input);
  kernels::SnakeArgs args;
  args.x = input.const_data_ptr<float>();
  args.out = out.mutable_data_ptr<float>();
  args.alpha = filters.alpha.const_data_ptr<float>();
  args.inverse_beta = filters.inverse_beta.const_data_ptr<float>();
  args.up = filters.up.const_data_ptr<float>();
  args.down = filters.down.const_data_ptr<float>();
  args.rows = x.size(0) * x.size(1);
  args.channels = x.size(1);
  args.length = x.size(2);
  C10_CUDA_CHECK(kernels::launch_snake(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

#else

bool has_snake_kernel(const at::Tensor&) { return false; }

at::Tensor fused_snake(const at::Tensor&, const SnakeFilters&) {
  fail(ErrorKind::internal, "the fused snake is a CUDA kernel");
}

#endif

}  // namespace flotilla::ops
