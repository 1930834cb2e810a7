// Vector loads and float arithmetic for the element types of the kernels.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace flotilla::kernels {

// kWidth elements that are read and written at once.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Pack {
  T values[kWidth];
};

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline void from_float(float value, float& out) { out = value; }
__device__ inline void from_float(float value, __nv_bfloat16& out) {
  out = __float2bfloat16(value);
}

__device__ inline float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFU, value, offset);
  return value;
}

inline bool is_aligned(const void* pointer, int64_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

}  // namespace flotilla::kernels
