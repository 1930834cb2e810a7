#include "kernels/quantise_rows.h"

#include "kernels/detail/row.cuh"

namespace flotilla::kernels {
namespace {

// A row's vectors that a thread keeps in registers, for the widths of LTX-2's layers (2048, 4096
// and up to 16,384 in bfloat16); those of other rows are read again.
constexpr int kMaxItems = 8;

__device__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ float reciprocal_fast(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). Exponent and
// quotient without the care for numbers below 1e-38 that intrinsics take: this function takes
// nearly as long as the row's bytes.
__device__ float gelu(float x) {
  constexpr float kLinear = -2.0F * 0.797884561F * 1.442695041F;  // log2(e), for exp2
  constexpr float kCubic = kLinear * 0.044715F;
  return x * reciprocal_fast(1.0F + exp2_fast(x * (kLinear + kCubic * x * x)));
}

template <RowFunction kFunction, typename T, int kWidth>
__device__ void apply(const QuantiseRowsArgs& args, int64_t row, int i, Pack<T, kWidth>& x) {
  if constexpr (kFunction == RowFunction::gelu) {
    Floats<kWidth> wide = to_floats(x);
#pragma unroll
    for (float& value : wide.values) value = gelu(value);
    from_floats(wide, x);
  } else if constexpr (kFunction == RowFunction::gate_heads) {
    const auto packs_per_head = static_cast<uint32_t>(args.dim / args.heads / kWidth);
    const uint32_t head = static_cast<uint32_t>(i) / packs_per_head;
    const float logit = to_float(static_cast<const T*>(args.gate_logits)[row * args.heads + head]);
    const float gate = 2.0F / (1.0F + __expf(-logit));
    Floats<kWidth> wide = to_floats(x);
#pragma unroll
    for (float& value : wide.values) value *= gate;
    from_floats(wide, x);
  }
}

// One block a row.
template <typename T, int kWidth, int kItems, RowFunction kFunction>
__global__ void __launch_bounds__(kRowThreads)
    quantise_rows_kernel(const __grid_constant__ QuantiseRowsArgs args) {
  using Vector = Pack<T, kWidth>;
  const int64_t row = blockIdx.x;
  const int packs = static_cast<int>(args.dim / kWidth);
  const auto* x = static_cast<const Vector*>(args.x) + row * packs;
  Vector kept[kItems > 0 ? kItems : 1];
  float largest[1] = {0.0F};
  // All loads of a thread are in flight before the first is used.
  if constexpr (kItems > 0)
    for_each_item<kItems>(packs, [&](int item, int i) { kept[item] = x[i]; });
  for_each_item<kItems>(packs, [&](int item, int i) {
    if constexpr (kItems == 0) kept[item] = x[i];
    apply<kFunction>(args, row, i, kept[item]);
    largest[0] = max_or_nan(largest[0], largest_of(kept[item]));
  });
  block_maxima(largest);
  const float scale = row_scale(largest[0]);
  if (threadIdx.x == 0) args.scales[row] = scale;
  const float inverse = 1.0F / scale;
  uint8_t* values = args.values + row * args.dim;
  for_each_item<kItems>(packs, [&](int item, int i) {
    if constexpr (kItems == 0) {
      kept[item] = x[i];
      apply<kFunction>(args, row, i, kept[item]);
    }
    keep_packed(kept[item]);
    store_e4m3(values, i, kept[item], inverse);
  });
}

template <typename T, int kWidth, int kItems>
cudaError_t launch_items(const QuantiseRowsArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.rows);
  switch (args.function) {
    case RowFunction::none:
      quantise_rows_kernel<T, kWidth, kItems, RowFunction::none>
          <<<blocks, kRowThreads, 0, stream>>>(args);
      return cudaGetLastError();
    case RowFunction::gelu:
      quantise_rows_kernel<T, kWidth, kItems, RowFunction::gelu>
          <<<blocks, kRowThreads, 0, stream>>>(args);
      return cudaGetLastError();
    case RowFunction::gate_heads:
      quantise_rows_kernel<T, kWidth, kItems, RowFunction::gate_heads>
          <<<blocks, kRowThreads, 0, stream>>>(args);
      return cudaGetLastError();
  }
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t launch(const QuantiseRowsArgs& args, cudaStream_t stream) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  const bool wide =
      args.dim / args.heads % kWidth == 0 && is_aligned(args.x) && is_aligned(args.values, kWidth);
  if (!wide) return launch_items<T, 1, 0>(args, stream);
  const int packs = static_cast<int>(args.dim / kWidth);
  if (packs <= kRowThreads) return launch_items<T, kWidth, 1>(args, stream);
  if (packs <= 2 * kRowThreads) return launch_items<T, kWidth, 2>(args, stream);
  if (packs <= kMaxItems * kRowThreads) return launch_items<T, kWidth, kMaxItems>(args, stream);
  return launch_items<T, kWidth, 0>(args, stream);
}

}  // namespace

cudaError_t launch_quantise_rows(const QuantiseRowsArgs& args, cudaStream_t stream) {
  if (args.dim <= 0 || args.dim > INT32_MAX || args.rows < 0 || args.rows > INT32_MAX ||
      args.heads <= 0 || args.dim % args.heads != 0)
    return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  switch (args.dtype) {
    case DataType::float32:
      return launch<float>(args, stream);
    case DataType::bfloat16:
      return launch<__nv_bfloat16>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace flotilla::kernels
