#include "kernels/rms_norm_modulate.h"

#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Sum over the block, the same in every thread.
__device__ float block_sum(float value) {
  __shared__ float smem_partial[kWarps];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) smem_partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0F;
  for (int warp = 0; warp < kWarps; ++warp) sum += smem_partial[warp];
  return sum;
}

// One block a token. The second reading of x comes from the L1 or L2 cache.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) rms_norm_modulate_kernel(RmsNormModulateArgs args) {
  using Vector = Pack<T, kWidth>;
  const int64_t token = blockIdx.x;
  const int64_t row =
      args.row_of_token != nullptr ? args.row_of_token[token] : token / args.tokens_per_row;
  const int64_t packs = args.dim / kWidth;
  const auto* x = static_cast<const Vector*>(args.x) + token * packs;
  const auto* scale = static_cast<const Vector*>(args.scale) + row * packs;
  const auto* shift = static_cast<const Vector*>(args.shift) + row * packs;
  auto* out = static_cast<Vector*>(args.out) + token * packs;

  float squares = 0.0F;
  for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
    const Vector in = x[i];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares += to_float(in.values[j]) * to_float(in.values[j]);
  }
  const float inverse_rms = rsqrtf(block_sum(squares) / static_cast<float>(args.dim) + args.eps);

  for (int64_t i = threadIdx.x; i < packs; i += kThreads) {
    const Vector in = x[i];
    const Vector a = scale[i];
    const Vector b = shift[i];
    Vector result;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float normed = to_float(in.values[j]) * inverse_rms;
      from_float(normed * (1.0F + to_float(a.values[j])) + to_float(b.values[j]), result.values[j]);
    }
    out[i] = result;
  }
}

template <typename T>
cudaError_t launch(const RmsNormModulateArgs& args, cudaStream_t stream) {
  constexpr int kWidth = 16 / sizeof(T);
  const auto blocks = static_cast<unsigned>(args.tokens);
  const bool wide = args.dim % kWidth == 0 && is_aligned(args.x) && is_aligned(args.scale) &&
                    is_aligned(args.shift) && is_aligned(args.out);
  if (wide) {
    rms_norm_modulate_kernel<T, kWidth><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    rms_norm_modulate_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_rms_norm_modulate(const RmsNormModulateArgs& args, cudaStream_t stream) {
  if (args.dim <= 0 || args.tokens < 0 || args.tokens > INT32_MAX || args.tokens_per_row <= 0)
    return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  switch (args.dtype) {
    case DataType::float32:
      return launch<float>(args, stream);
    case DataType::bfloat16:
      return launch<__nv_bfloat16>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace flotilla::kernels
