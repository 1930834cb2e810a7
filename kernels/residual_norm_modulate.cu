#include "kernels/residual_norm_modulate.h"

#include "kernels/detail/row.cuh"

namespace flotilla::kernels {
namespace {

// A token's vectors that a thread keeps in registers; wider tokens are read again.
constexpr int kMaxItems = 4;

// x' of one vector, rounded to the type; written where there is an update.
template <typename T, int kWidth>
__device__ Pack<T, kWidth> residual(const ResidualNormModulateArgs& args, int64_t token,
                                    int64_t gate_row, int packs, int i) {
  using Vector = Pack<T, kWidth>;
  Vector x = static_cast<const Vector*>(args.x)[token * packs + i];
  if (args.update == nullptr) return x;
  Floats<kWidth> update = to_floats(static_cast<const Vector*>(args.update)[token * packs + i]);
  if (args.gate != nullptr) {
    const Floats<kWidth> gate = to_floats(*reinterpret_cast<const Vector*>(
        static_cast<const T*>(args.gate) + gate_row * args.gate_row_stride + i * kWidth));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) update.values[j] *= gate.values[j];
  }
  Floats<kWidth> sum = to_floats(x);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum.values[j] += update.values[j];
  from_floats(sum, x);
  static_cast<Vector*>(args.sum)[token * packs + i] = x;
  return x;
}

template <typename T, int kWidth>
__device__ Pack<T, kWidth> modulated(const ModulationArgs& modulation, const Pack<T, kWidth>& x,
                                     float inverse_rms, int64_t row, int i) {
  using Vector = Pack<T, kWidth>;
  const int64_t at = row * modulation.row_stride + i * kWidth;
  const Floats<kWidth> scale =
      to_floats(*reinterpret_cast<const Vector*>(static_cast<const T*>(modulation.scale) + at));
  const Floats<kWidth> shift =
      to_floats(*reinterpret_cast<const Vector*>(static_cast<const T*>(modulation.shift) + at));
  Floats<kWidth> wide = to_floats(x);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    wide.values[j] = wide.values[j] * inverse_rms * (1.0F + scale.values[j]) + shift.values[j];
  }
  Vector out;
  from_floats(wide, out);
  return out;
}

// One block a token. kItems vectors a thread stay in registers; 0: any number, read again from the
// cache and modulated again. kQuantised: some modulation is wanted as e4m3.
template <typename T, int kWidth, int kItems, bool kQuantised>
__global__ void __launch_bounds__(kRowThreads)
    residual_norm_modulate_kernel(const __grid_constant__ ResidualNormModulateArgs args) {
  using Vector = Pack<T, kWidth>;
  constexpr int kKept = kItems > 0 ? kItems : 1;
  const int64_t token = blockIdx.x;
  const int64_t indexed = args.row_of_token != nullptr ? args.row_of_token[token] : 0;
  const int64_t row = args.row_of_token != nullptr ? indexed : token / args.tokens_per_row;
  const int64_t gate_row = args.gate_is_indexed ? row : token / args.gate_tokens_per_row;
  const int packs = static_cast<int>(args.dim / kWidth);

  Vector kept[kKept];
  float squares = 0.0F;
  for_each_item<kItems>(packs, [&](int item, int i) {
    kept[item] = residual<T, kWidth>(args, token, gate_row, packs, i);
    squares += squares_of(kept[item]);
  });
  if (args.modulations == 0) return;
  const float inverse_rms =
      args.normed ? rsqrtf(block_sum(squares) / static_cast<float>(args.dim) + args.eps) : 1.0F;
  const auto* written =
      static_cast<const Vector*>(args.update != nullptr ? args.sum : args.x) + token * packs;
  const auto x_at = [&](int item, int i) { return kItems > 0 ? kept[item] : written[i]; };

  Vector results[kMaxModulations][kKept];
  float largest[kMaxModulations] = {};
  for_each_item<kItems>(packs, [&](int item, int i) {
    const Vector x = x_at(item, i);
#pragma unroll
    for (int m = 0; m < kMaxModulations; ++m) {
      if (m >= args.modulations) break;
      const ModulationArgs& modulation = args.modulation[m];
      const Vector result = modulated(modulation, x, inverse_rms, row, i);
      if (modulation.out != nullptr)
        static_cast<Vector*>(modulation.out)[token * packs + i] = result;
      if constexpr (kQuantised) {
        results[m][item] = result;
        largest[m] = max_or_nan(largest[m], largest_of(result));
      }
    }
  });
  if constexpr (kQuantised) {
    block_maxima(largest);
#pragma unroll
    for (int m = 0; m < kMaxModulations; ++m) {
      if (m >= args.modulations) break;
      const ModulationArgs& modulation = args.modulation[m];
      if (modulation.values == nullptr) continue;
      const float scale = row_scale(largest[m]);
      if (threadIdx.x == 0) modulation.scales[token] = scale;
      const float inverse = 1.0F / scale;
      for_each_item<kItems>(packs, [&](int item, int i) {
        Vector result = kItems > 0 ? results[m][item]
                                   : modulated(modulation, x_at(item, i), inverse_rms, row, i);
        keep_packed(result);
        store_e4m3(modulation.values + token * args.dim, i, result, inverse);
      });
    }
  }
}

template <typename T, int kWidth, bool kQuantised>
cudaError_t launch_width(const ResidualNormModulateArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.tokens);
  const int packs = static_cast<int>(args.dim / kWidth);
  if (packs <= kRowThreads) {
    residual_norm_modulate_kernel<T, kWidth, 1, kQuantised>
        <<<blocks, kRowThreads, 0, stream>>>(args);
  } else if (packs <= 2 * kRowThreads) {
    residual_norm_modulate_kernel<T, kWidth, 2, kQuantised>
        <<<blocks, kRowThreads, 0, stream>>>(args);
  } else if (packs <= kMaxItems * kRowThreads) {
    residual_norm_modulate_kernel<T, kWidth, kMaxItems, kQuantised>
        <<<blocks, kRowThreads, 0, stream>>>(args);
  } else {
    residual_norm_modulate_kernel<T, kWidth, 0, kQuantised>
        <<<blocks, kRowThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const ResidualNormModulateArgs& args, cudaStream_t stream) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  bool wide = args.dim % kWidth == 0 && is_aligned(args.x) && is_aligned(args.update) &&
              is_aligned(args.gate) && is_aligned(args.sum) && args.gate_row_stride % kWidth == 0;
  bool quantised = false;
  for (int m = 0; m < args.modulations; ++m) {
    const ModulationArgs& modulation = args.modulation[m];
    wide = wide && is_aligned(modulation.scale) && is_aligned(modulation.shift) &&
           is_aligned(modulation.out) && is_aligned(modulation.values, kWidth) &&
           modulation.row_stride % kWidth == 0;
    quantised = quantised || modulation.values != nullptr;
  }
  if (quantised)
    return wide ? launch_width<T, kWidth, true>(args, stream)
                : launch_width<T, 1, true>(args, stream);
  return wide ? launch_width<T, kWidth, false>(args, stream)
              : launch_width<T, 1, false>(args, stream);
}

}  // namespace

cudaError_t launch_residual_norm_modulate(const ResidualNormModulateArgs& args,
                                          cudaStream_t stream) {
  if (args.dim <= 0 || args.dim > INT32_MAX || args.tokens < 0 || args.tokens > INT32_MAX ||
      args.tokens_per_row <= 0 || args.gate_tokens_per_row <= 0 || args.modulations < 0 ||
      args.modulations > kMaxModulations)
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
