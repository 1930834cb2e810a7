// A block that works on one row of vectors: its items, its reductions, and the rounding of the row
// to e4m3 with one scale. The rounding is that of ops::quantise_rows_aten(), to the byte:
//   scale = max(largest magnitude, 1e-12) / 448;  e4m3 = round to nearest even(number / scale)
// A row with a NaN or an infinity has e4m3 NaNs in it, so that the product is not finite either.
#pragma once

#include <cuda_fp8.h>

#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {

constexpr int kRowThreads = 256;
constexpr int kRowWarps = kRowThreads / 32;

// function(item, i) for the vectors i of the row that are this thread's. kItems > 0: at most so
// many, with `item` known when compiling, so that arrays indexed by it stay in registers; 0: any
// number, all with item 0.
template <int kItems, typename Function>
__device__ void for_each_item(int packs, Function function) {
  if constexpr (kItems > 0) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const int i = static_cast<int>(threadIdx.x) + item * kRowThreads;
      if (i < packs) function(item, i);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < packs; i += kRowThreads) function(0, i);
  }
}

// Sum over the block, the same in every thread. Once a kernel.
__device__ inline float block_sum(float value) {
  __shared__ float smem_sums[kRowWarps];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) smem_sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0F;
  for (int warp = 0; warp < kRowWarps; ++warp) sum += smem_sums[warp];
  return sum;
}

// NaN where either is, which fmaxf() would hide.
__device__ inline float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// The largest magnitude of a vector.
template <typename T, int kWidth>
__device__ float largest_of(const Pack<T, kWidth>& x) {
  float largest = 0.0F;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) largest = max_or_nan(largest, fabsf(to_float(x.values[j])));
  return largest;
}
template <>
__device__ inline float largest_of(const Pack<__nv_bfloat16, 8>& x) {  // in pairs, not widened
  __nv_bfloat162 largest = __habs2({x.values[0], x.values[1]});
#pragma unroll
  for (int j = 2; j < 8; j += 2)
    largest = __hmax2_nan(largest, __habs2({x.values[j], x.values[j + 1]}));
  return max_or_nan(to_float(largest.x), to_float(largest.y));
}

// Each value becomes its maximum over the block, the same in every thread. Once a kernel.
template <int kCount>
__device__ void block_maxima(float (&values)[kCount]) {
  __shared__ float smem_maxima[kCount][kRowWarps];
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    for (int offset = 16; offset > 0; offset /= 2)
      values[n] = max_or_nan(values[n], __shfl_xor_sync(0xFFFFFFFFU, values[n], offset));
    if (threadIdx.x % 32 == 0) smem_maxima[n][threadIdx.x / 32] = values[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    for (int warp = 0; warp < kRowWarps; ++warp)
      values[n] = max_or_nan(values[n], smem_maxima[n][warp]);
  }
}

// The scale of a row with this largest magnitude.
__device__ inline float row_scale(float largest) {
  return max_or_nan(largest, 1e-12F) * (1.0F / 448.0F);
}

// Makes the compiler convert `x` to float again where it is used next. Else it keeps the floats of
// the first use in registers, twice as many for bfloat16: 107 a thread in place of 54 with eight
// vectors, so half the blocks on a processor.
template <typename T, int kWidth>
__device__ void keep_packed(Pack<T, kWidth>& x) {
  if constexpr (sizeof(x) % sizeof(uint32_t) == 0) {
    auto* words = reinterpret_cast<uint32_t*>(&x);
#pragma unroll
    for (int word = 0; word < static_cast<int>(sizeof(x) / sizeof(uint32_t)); ++word)
      asm volatile("" : "+r"(words[word]));
  }
}

// Vector i of a row of e4m3.
template <typename T, int kWidth>
__device__ void store_e4m3(uint8_t* row, int i, const Pack<T, kWidth>& x, float inverse_scale) {
  Floats<kWidth> wide = to_floats(x);
#pragma unroll
  for (float& value : wide.values) value *= inverse_scale;
  if constexpr (kWidth == 1) {
    row[i] = __nv_cvt_float_to_fp8(wide.values[0], __NV_SATFINITE, __NV_E4M3);
  } else {
    Pack<__nv_fp8x2_storage_t, kWidth / 2> pairs;
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) {
      pairs.values[j] = __nv_cvt_float2_to_fp8x2({wide.values[2 * j], wide.values[2 * j + 1]},
                                                 __NV_SATFINITE, __NV_E4M3);
    }
    reinterpret_cast<Pack<__nv_fp8x2_storage_t, kWidth / 2>*>(row)[i] = pairs;
  }
}

}  // namespace flotilla::kernels
