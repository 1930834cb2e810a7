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

template <int kWidth>
struct Floats {
  float values[kWidth];
};

// Widens a vector. bfloat16 in pairs, one instruction each: the upper half of a float is the
// number.
template <typename T, int kWidth>
__device__ Floats<kWidth> to_floats(Pack<T, kWidth> x) {
  Floats<kWidth> out;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) out.values[j] = to_float(x.values[j]);
  return out;
}
template <>
__device__ inline Floats<8> to_floats(Pack<__nv_bfloat16, 8> x) {
  Floats<8> out;
  const auto* words = reinterpret_cast<const uint32_t*>(&x);
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    out.values[2 * word] = __uint_as_float(words[word] << 16);
    out.values[2 * word + 1] = __uint_as_float(words[word] & 0xFFFF0000U);
  }
  return out;
}

// Rounds a vector. bfloat16 in pairs: single conversions go through the unit for special functions,
// at a quarter of the rate.
template <typename T, int kWidth>
__device__ void from_floats(const Floats<kWidth>& from, Pack<T, kWidth>& out) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) from_float(from.values[j], out.values[j]);
}
template <>
__device__ inline void from_floats(const Floats<8>& from, Pack<__nv_bfloat16, 8>& out) {
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(from.values[j], from.values[j + 1]);
    out.values[j] = pair.x;
    out.values[j + 1] = pair.y;
  }
}

__device__ inline float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2)
    value += __shfl_xor_sync(0xFFFFFFFFU, value, offset);
  return value;
}

// Sum of the squares of a vector, in float32.
template <typename T, int kWidth>
__device__ float squares_of(const Pack<T, kWidth>& x) {
  const Floats<kWidth> wide = to_floats(x);
  float squares = 0.0F;
#pragma unroll
  for (const float value : wide.values) squares += value * value;
  return squares;
}

inline bool is_aligned(const void* pointer, int64_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(bytes) == 0;
}

}  // namespace flotilla::kernels
