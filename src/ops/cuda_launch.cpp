#include "ops/cuda_launch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "kernels/rms_norm_modulate.h"

namespace flotilla::ops::cuda {
namespace {

kernels::DataType data_type(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return kernels::DataType::float32;
    case at::kBFloat16:
      return kernels::DataType::bfloat16;
    default:
      fail(ErrorKind::internal,
           std::string("no CUDA kernel for ") + c10::toString(x.scalar_type()));
  }
}

}  // namespace

at::Tensor rms_norm_modulate(const at::Tensor& x, double eps, const TokenModulation& modulation) {
  FLOTILLA_ASSERT(x.dim() == 3 && modulation.scale.size(-1) == x.size(2));
  const at::Tensor input = x.contiguous();
  const at::Tensor scale = modulation.scale.to(x.scalar_type()).contiguous();
  const at::Tensor shift = modulation.shift.to(x.scalar_type()).contiguous();
  const at::Tensor index =
      modulation.row_of_token.defined() ? modulation.row_of_token.contiguous() : at::Tensor();
  at::Tensor out = at::empty_like(input);
  kernels::RmsNormModulateArgs args;
  args.x = input.const_data_ptr();
  args.scale = scale.const_data_ptr();
  args.shift = shift.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.row_of_token = index.defined() ? index.const_data_ptr<int64_t>() : nullptr;
  args.tokens = x.size(0) * x.size(1);
  args.tokens_per_row = scale.size(0) == 1 ? args.tokens : x.size(1);
  args.dim = x.size(2);
  args.eps = static_cast<float>(eps);
  args.dtype = data_type(x);
  C10_CUDA_CHECK(kernels::launch_rms_norm_modulate(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

}  // namespace flotilla::ops::cuda
