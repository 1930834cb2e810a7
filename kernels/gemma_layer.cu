#include "kernels/detail/vector.cuh"
#include "kernels/gemma_layer.h"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// 16-byte vectors of a token that a thread keeps in registers.
constexpr int kMaxItems = 4;

// Sum over the block, the same in every thread; `smem` has kWarps floats that nothing else uses.
__device__ float block_sum(float value, float* smem) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) smem[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0F;
  for (int warp = 0; warp < kWarps; ++warp) sum += smem[warp];
  return sum;
}

// One block a token.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_norm_kernel(const __grid_constant__ AddNormArgs args) {
  using Vector = Pack<T, kWidth>;
  __shared__ float smem_update[kWarps];
  __shared__ float smem_sum[kWarps];
  const int64_t packs = args.dim / kWidth;
  const int64_t base = blockIdx.x * packs;
  Vector x[kMaxItems];
  Vector update[kMaxItems];
  float squares = 0.0F;
#pragma unroll
  for (int item = 0; item < kMaxItems; ++item) {
    const int64_t i = threadIdx.x + int64_t{item} * kThreads;
    if (i >= packs) continue;
    x[item] = static_cast<const Vector*>(args.x)[base + i];
    if (args.update == nullptr) continue;
    update[item] = static_cast<const Vector*>(args.update)[base + i];
    squares += squares_of(update[item]);
  }
  if (args.update != nullptr) {
    const float inverse =
        rsqrtf(block_sum(squares, smem_update) / static_cast<float>(args.dim) + args.eps);
#pragma unroll
    for (int item = 0; item < kMaxItems; ++item) {
      const int64_t i = threadIdx.x + int64_t{item} * kThreads;
      if (i >= packs) continue;
      const Vector weight = static_cast<const Vector*>(args.update_weight)[i];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float normed =
            to_float(update[item].values[j]) * inverse * (1.0F + to_float(weight.values[j]));
        from_float(to_float(x[item].values[j]) + normed, x[item].values[j]);
      }
      static_cast<Vector*>(args.sum)[base + i] = x[item];
    }
  }
  if (args.norm_out == nullptr) return;
  squares = 0.0F;
#pragma unroll
  for (int item = 0; item < kMaxItems; ++item) {
    if (threadIdx.x + int64_t{item} * kThreads < packs) squares += squares_of(x[item]);
  }
  const float inverse =
      rsqrtf(block_sum(squares, smem_sum) / static_cast<float>(args.dim) + args.eps);
#pragma unroll
  for (int item = 0; item < kMaxItems; ++item) {
    const int64_t i = threadIdx.x + int64_t{item} * kThreads;
    if (i >= packs) continue;
    const Vector weight = static_cast<const Vector*>(args.norm_weight)[i];
    Vector out;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      from_float(to_float(x[item].values[j]) * inverse * (1.0F + to_float(weight.values[j])),
                 out.values[j]);
    }
    static_cast<Vector*>(args.norm_out)[base + i] = out;
  }
}

template <typename T>
bool is_wide(const AddNormArgs& args) {
  constexpr int64_t kWidth = 16 / static_cast<int64_t>(sizeof(T));
  return args.dim % kWidth == 0 && is_aligned(args.x) && is_aligned(args.update) &&
         is_aligned(args.update_weight) && is_aligned(args.sum) && is_aligned(args.norm_weight) &&
         is_aligned(args.norm_out);
}

template <typename T>
cudaError_t launch(const AddNormArgs& args, cudaStream_t stream) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  const auto blocks = static_cast<unsigned>(args.tokens);
  if (is_wide<T>(args)) {
    add_norm_kernel<T, kWidth><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    add_norm_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

// Pairs of a head's halves that a lane keeps.
constexpr int kMaxPairs = 8;

// One warp a head of a token.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    head_norm_rotate_kernel(const __grid_constant__ HeadNormRotateArgs args) {
  const int64_t head = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32;
  if (head >= args.tokens * args.heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int half = static_cast<int>(args.head_dim / 2);
  const T* x = static_cast<const T*>(args.x) + head * args.head_dim;
  float low[kMaxPairs];
  float high[kMaxPairs];
  float squares = 0.0F;
#pragma unroll
  for (int pair = 0; pair < kMaxPairs; ++pair) {
    const int i = lane + pair * 32;
    if (i >= half) continue;
    low[pair] = to_float(x[i]);
    high[pair] = to_float(x[i + half]);
    squares += low[pair] * low[pair] + high[pair] * high[pair];
  }
  const float inverse = rsqrtf(warp_sum(squares) / static_cast<float>(args.head_dim) + args.eps);
  const int64_t row = head / args.heads % args.positions * args.head_dim;
  const T* weight = static_cast<const T*>(args.weight);
  const T* cos = static_cast<const T*>(args.cos) + row;
  const T* sin = static_cast<const T*>(args.sin) + row;
  T* out = static_cast<T*>(args.out) + head * args.head_dim;
#pragma unroll
  for (int pair = 0; pair < kMaxPairs; ++pair) {
    const int i = lane + pair * 32;
    if (i >= half) continue;
    const float a = low[pair] * inverse * (1.0F + to_float(weight[i]));
    const float b = high[pair] * inverse * (1.0F + to_float(weight[i + half]));
    from_float(a * to_float(cos[i]) - b * to_float(sin[i]), out[i]);
    from_float(b * to_float(cos[i + half]) + a * to_float(sin[i + half]), out[i + half]);
  }
}

template <typename T>
cudaError_t launch(const HeadNormRotateArgs& args, cudaStream_t stream) {
  const int64_t blocks = (args.tokens * args.heads + kWarps - 1) / kWarps;
  head_norm_rotate_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

__device__ float gelu_tanh(float x) {
  constexpr float kBeta = 0.7978845608028654F;  // sqrt(2 / pi)
  return 0.5F * x * (1.0F + tanhf(kBeta * (x + 0.044715F * x * x * x)));
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    gelu_product_kernel(const __grid_constant__ GeluProductArgs args) {
  using Vector = Pack<T, kWidth>;
  const int64_t packs = args.count / kWidth;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < packs;
       i += int64_t{gridDim.x} * kThreads) {
    const Vector gate = static_cast<const Vector*>(args.gate)[i];
    Vector value = static_cast<const Vector*>(args.up)[i];
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      from_float(gelu_tanh(to_float(gate.values[j])) * to_float(value.values[j]), value.values[j]);
    static_cast<Vector*>(args.out)[i] = value;
  }
}

template <typename T>
cudaError_t launch(const GeluProductArgs& args, cudaStream_t stream) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  constexpr int64_t kMaxBlocks = 65536;
  const bool wide = args.count % kWidth == 0 && is_aligned(args.gate) && is_aligned(args.up) &&
                    is_aligned(args.out);
  const int64_t packs = wide ? args.count / kWidth : args.count;
  const int64_t needed = (packs + kThreads - 1) / kThreads;
  const auto blocks = static_cast<unsigned>(needed < kMaxBlocks ? needed : kMaxBlocks);
  if (wide) {
    gelu_product_kernel<T, kWidth><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    gelu_product_kernel<T, 1><<<blocks, kThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <typename Args>
cudaError_t dispatch(const Args& args, cudaStream_t stream) {
  switch (args.dtype) {
    case DataType::float32:
      return launch<float>(args, stream);
    case DataType::bfloat16:
      return launch<__nv_bfloat16>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

bool add_norm_takes(const AddNormArgs& args) {
  const bool wide =
      args.dtype == DataType::float32 ? is_wide<float>(args) : is_wide<__nv_bfloat16>(args);
  const int64_t width = !wide ? 1 : (args.dtype == DataType::float32 ? 4 : 8);
  return args.dim > 0 && args.dim / width <= int64_t{kMaxItems} * kThreads && args.tokens >= 0 &&
         args.tokens <= INT32_MAX;
}

cudaError_t launch_add_norm(const AddNormArgs& args, cudaStream_t stream) {
  if (!add_norm_takes(args)) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  return dispatch(args, stream);
}

bool head_norm_rotate_takes(const HeadNormRotateArgs& args) {
  return args.head_dim > 0 && args.head_dim % 2 == 0 && args.head_dim / 2 <= 32 * kMaxPairs &&
         args.heads > 0 && args.positions > 0 && args.tokens >= 0 &&
         args.tokens * args.heads <= INT32_MAX;
}

cudaError_t launch_head_norm_rotate(const HeadNormRotateArgs& args, cudaStream_t stream) {
  if (!head_norm_rotate_takes(args)) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  return dispatch(args, stream);
}

cudaError_t launch_gelu_product(const GeluProductArgs& args, cudaStream_t stream) {
  if (args.count < 0) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  return dispatch(args, stream);
}

}  // namespace flotilla::kernels
