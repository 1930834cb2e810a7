#include "kernels/residual_norm_modulate.h"

#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// A token's vectors that a thread keeps in registers; wider tokens are read again.
constexpr int kMaxItems = 4;

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

// x' of one vector, rounded to the type; written where there is an update.
template <typename T, int kWidth>
__device__ Pack<T, kWidth> residual(const ResidualNormModulateArgs& args, int64_t token,
                                    int64_t gate_row, int64_t packs, int64_t i) {
  using Vector = Pack<T, kWidth>;
  Vector x = static_cast<const Vector*>(args.x)[token * packs + i];
  if (args.update == nullptr) return x;
  const Vector update = static_cast<const Vector*>(args.update)[token * packs + i];
  Vector gate;
  if (args.gate != nullptr) {
    gate = *reinterpret_cast<const Vector*>(static_cast<const T*>(args.gate) +
                                            gate_row * args.gate_row_stride + i * kWidth);
  }
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float factor = args.gate != nullptr ? to_float(gate.values[j]) : 1.0F;
    from_float(to_float(x.values[j]) + to_float(update.values[j]) * factor, x.values[j]);
  }
  static_cast<Vector*>(args.sum)[token * packs + i] = x;
  return x;
}

template <typename T, int kWidth>
__device__ void modulate(const ResidualNormModulateArgs& args, const Pack<T, kWidth>& x,
                         float inverse_rms, int64_t token, int64_t row, int64_t packs, int64_t i) {
  using Vector = Pack<T, kWidth>;
#pragma unroll
  for (int m = 0; m < kMaxModulations; ++m) {
    if (m >= args.modulations) break;
    const ModulationArgs& modulation = args.modulation[m];
    const int64_t at = row * modulation.row_stride + i * kWidth;
    const auto scale =
        *reinterpret_cast<const Vector*>(static_cast<const T*>(modulation.scale) + at);
    const auto shift =
        *reinterpret_cast<const Vector*>(static_cast<const T*>(modulation.shift) + at);
    Vector out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float normed = to_float(x.values[j]) * inverse_rms;
      from_float(normed * (1.0F + to_float(scale.values[j])) + to_float(shift.values[j]),
                 out.values[j]);
    }
    static_cast<Vector*>(modulation.out)[token * packs + i] = out;
  }
}

template <typename T, int kWidth>
__device__ float squares_of(const Pack<T, kWidth>& x) {
  float squares = 0.0F;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) squares += to_float(x.values[j]) * to_float(x.values[j]);
  return squares;
}

// One block a token. kItems vectors a thread stay in registers; 0: any number, read again from the
// cache.
template <typename T, int kWidth, int kItems>
__global__ void __launch_bounds__(kThreads)
    residual_norm_modulate_kernel(const __grid_constant__ ResidualNormModulateArgs args) {
  using Vector = Pack<T, kWidth>;
  const int64_t token = blockIdx.x;
  const int64_t indexed = args.row_of_token != nullptr ? args.row_of_token[token] : 0;
  const int64_t row = args.row_of_token != nullptr ? indexed : token / args.tokens_per_row;
  const int64_t gate_row = args.gate_is_indexed ? row : token / args.gate_tokens_per_row;
  const int64_t packs = args.dim / kWidth;

  Vector kept[kItems > 0 ? kItems : 1];
  float squares = 0.0F;
  if (kItems > 0) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int64_t i = threadIdx.x + int64_t{item} * kThreads;
      if (i >= packs) continue;
      kept[item] = residual<T, kWidth>(args, token, gate_row, packs, i);
      squares += squares_of(kept[item]);
    }
  } else {
    for (int64_t i = threadIdx.x; i < packs; i += kThreads)
      squares += squares_of(residual<T, kWidth>(args, token, gate_row, packs, i));
  }
  if (args.modulations == 0) return;
  const float inverse_rms =
      args.normed ? rsqrtf(block_sum(squares) / static_cast<float>(args.dim) + args.eps) : 1.0F;
  if (kItems > 0) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int64_t i = threadIdx.x + int64_t{item} * kThreads;
      if (i < packs) modulate<T, kWidth>(args, kept[item], inverse_rms, token, row, packs, i);
    }
  } else {
    const auto* x = static_cast<const Vector*>(args.update != nullptr ? args.sum : args.x);
    for (int64_t i = threadIdx.x; i < packs; i += kThreads)
      modulate<T, kWidth>(args, x[token * packs + i], inverse_rms, token, row, packs, i);
  }
}

template <typename T, int kWidth>
cudaError_t launch_width(const ResidualNormModulateArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.tokens);
  const int64_t packs = args.dim / kWidth;
  if (packs <= kThreads) {
    residual_norm_modulate_kernel<T, kWidth, 1><<<blocks, kThreads, 0, stream>>>(args);
  } else if (packs <= 2 * kThreads) {
    residual_norm_modulate_kernel<T, kWidth, 2><<<blocks, kThreads, 0, stream>>>(args);
  } else if (packs <= kMaxItems * kThreads) {
    residual_norm_modulate_kernel<T, kWidth, kMaxItems><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    residual_norm_modulate_kernel<T, kWidth, 0><<<blocks, kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const ResidualNormModulateArgs& args, cudaStream_t stream) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  bool wide = args.dim % kWidth == 0 && is_aligned(args.x) && is_aligned(args.update) &&
              is_aligned(args.gate) && is_aligned(args.sum) && args.gate_row_stride % kWidth == 0;
  for (int m = 0; m < args.modulations; ++m) {
    const ModulationArgs& modulation = args.modulation[m];
    wide = wide && is_aligned(modulation.scale) && is_aligned(modulation.shift) &&
           is_aligned(modulation.out) && modulation.row_stride % kWidth == 0;
  }
  return wide ? launch_width<T, kWidth>(args, stream) : launch_width<T, 1>(args, stream);
}

}  // namespace

cudaError_t launch_residual_norm_modulate(const ResidualNormModulateArgs& args,
                                          cudaStream_t stream) {
  if (args.dim <= 0 || args.tokens < 0 || args.tokens > INT32_MAX || args.tokens_per_row <= 0 ||
      args.gate_tokens_per_row <= 0 || args.modulations < 0 || args.modulations > kMaxModulations)
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
