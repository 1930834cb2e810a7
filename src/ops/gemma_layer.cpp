#include "ops/gemma_layer.h"

#include <ATen/ATen.h>

#include "base/error.h"

#ifdef FLOTILLA_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "kernels/gemma_layer.h"
#include "ops/cuda_launch.h"
#endif

namespace flotilla::ops {

at::Tensor gemma_rms_norm_aten(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + eps);
  return (wide * scale * (1.0 + weight.to(wide.scalar_type()))).to(x.scalar_type());
}

GemmaResidual gemma_add_norm_aten(const at::Tensor& x, const at::Tensor& update,
                                  const at::Tensor& update_weight, double eps,
                                  const at::Tensor& norm_weight) {
  GemmaResidual residual;
  residual.sum = x + gemma_rms_norm_aten(update, update_weight, eps);
  if (norm_weight.defined()) residual.normed = gemma_rms_norm_aten(residual.sum, norm_weight, eps);
  return residual;
}

at::Tensor gemma_norm_rotate_aten(const at::Tensor& x, int64_t heads, const at::Tensor& weight,
                                  double eps, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor split = x.unflatten(-1, {heads, -1}).transpose(1, 2);  // [B, H, T, head_dim]
  const at::Tensor normed = gemma_rms_norm_aten(split, weight, eps);
  const auto halves = normed.chunk(2, -1);
  return normed * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

at::Tensor gelu_product_aten(const at::Tensor& gate, const at::Tensor& up) {
  return at::gelu(gate, "tanh") * up;
}

#ifdef FLOTILLA_CUDA
namespace {

kernels::DataType data_type(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat ? kernels::DataType::float32 : kernels::DataType::bfloat16;
}

// Of one type and device, which kernels take for granted.
bool are_alike(const at::Tensor& x, std::initializer_list<at::Tensor> others) {
  for (const at::Tensor& other : others) {
    if (other.defined() && (other.scalar_type() != x.scalar_type() || other.device() != x.device()))
      return false;
  }
  return true;
}

// Undefined where the kernel does not take the sizes.
GemmaResidual fused_add_norm(const at::Tensor& x, const at::Tensor& update,
                             const at::Tensor& update_weight, double eps,
                             const at::Tensor& norm_weight) {
  GemmaResidual residual;
  if (!cuda::has_kernels_for(x) || !are_alike(x, {update, update_weight, norm_weight})) return {};
  const at::Tensor input = x.contiguous();
  const at::Tensor added = update.defined() ? update.contiguous() : update;
  kernels::AddNormArgs args;
  args.x = input.const_data_ptr();
  args.dim = x.size(-1);
  args.tokens = x.numel() / args.dim;
  args.eps = static_cast<float>(eps);
  args.dtype = data_type(x);
  if (update.defined()) {
    residual.sum = at::empty_like(input);
    args.update = added.const_data_ptr();
    args.update_weight = update_weight.const_data_ptr();
    args.sum = residual.sum.mutable_data_ptr();
  }
  if (norm_weight.defined()) {
    residual.normed = at::empty_like(input);
    args.norm_weight = norm_weight.const_data_ptr();
    args.norm_out = residual.normed.mutable_data_ptr();
  }
  if (!kernels::add_norm_takes(args)) return {};
  C10_CUDA_CHECK(kernels::launch_add_norm(args, c10::cuda::getCurrentCUDAStream()));
  return residual;
}

}  // namespace

at::Tensor gemma_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor fused = fused_add_norm(x, {}, {}, eps, weight).normed;
  return fused.defined() ? fused : gemma_rms_norm_aten(x, weight, eps);
}

GemmaResidual gemma_add_norm(const at::Tensor& x, const at::Tensor& update,
                             const at::Tensor& update_weight, double eps,
                             const at::Tensor& norm_weight) {
  GemmaResidual fused = fused_add_norm(x, update, update_weight, eps, norm_weight);
  if (fused.sum.defined()) return fused;
  return gemma_add_norm_aten(x, update, update_weight, eps, norm_weight);
}

at::Tensor gemma_norm_rotate(const at::Tensor& x, int64_t heads, const at::Tensor& weight,
                             double eps, const at::Tensor& cos, const at::Tensor& sin) {
  FLOTILLA_ASSERT(x.dim() == 3 && x.size(2) % heads == 0 && cos.size(0) == x.size(1));
  const int64_t head_dim = x.size(2) / heads;
  kernels::HeadNormRotateArgs args;
  args.tokens = x.size(0) * x.size(1);
  args.positions = x.size(1);
  args.heads = heads;
  args.head_dim = head_dim;
  if (!cuda::has_kernels_for(x) || !are_alike(x, {weight, cos, sin}) ||
      !kernels::head_norm_rotate_takes(args))
    return gemma_norm_rotate_aten(x, heads, weight, eps, cos, sin);
  const at::Tensor input = x.contiguous();
  const at::Tensor out = at::empty_like(input);
  args.x = input.const_data_ptr();
  args.weight = weight.const_data_ptr();
  args.cos = cos.const_data_ptr();
  args.sin = sin.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.eps = static_cast<float>(eps);
  args.dtype = data_type(x);
  C10_CUDA_CHECK(kernels::launch_head_norm_rotate(args, c10::cuda::getCurrentCUDAStream()));
  return out.view({x.size(0), x.size(1), heads, head_dim}).transpose(1, 2);
}

at::Tensor gelu_product(const at::Tensor& gate, const at::Tensor& up) {
  FLOTILLA_ASSERT(gate.sizes() == up.sizes());
  if (!cuda::has_kernels_for(gate) || !are_alike(gate, {up}) || !gate.is_contiguous() ||
      !up.is_contiguous())
    return gelu_product_aten(gate, up);
  const at::Tensor out = at::empty_like(up);
  const kernels::GeluProductArgs args{gate.const_data_ptr(), up.const_data_ptr(),
                                      out.mutable_data_ptr(), gate.numel(), data_type(gate)};
  C10_CUDA_CHECK(kernels::launch_gelu_product(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

#else

at::Tensor gemma_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return gemma_rms_norm_aten(x, weight, eps);
}

GemmaResidual gemma_add_norm(const at::Tensor& x, const at::Tensor& update,
                             const at::Tensor& update_weight, double eps,
                             const at::Tensor& norm_weight) {
  return gemma_add_norm_aten(x, update, update_weight, eps, norm_weight);
}

at::Tensor gemma_norm_rotate(const at::Tensor& x, int64_t heads, const at::Tensor& weight,
                             double eps, const at::Tensor& cos, const at::Tensor& sin) {
  return gemma_norm_rotate_aten(x, heads, weight, eps, cos, sin);
}

at::Tensor gelu_product(const at::Tensor& gate, const at::Tensor& up) {
  return gelu_product_aten(gate, up);
}

#endif

}  // namespace flotilla::ops
