#include "kernels/gate_heads.h"

#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;

template <typename T, int kWidth>
__global__ void __launch_bounds__(kThreads) gate_heads_kernel(GateHeadsArgs args) {
  using Vector = Pack<T, kWidth>;
  const int64_t packs_per_head = args.head_dim / kWidth;
  const int64_t packs = args.tokens * args.heads * packs_per_head;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < packs;
       i += int64_t{gridDim.x} * kThreads) {
    Vector value = static_cast<const Vector*>(args.heads_out)[i];
    const float logit = to_float(static_cast<const T*>(args.logits)[i / packs_per_head]);
    const float gate = 2.0F / (1.0F + __expf(-logit));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) from_float(to_float(value.values[j]) * gate, value.values[j]);
    static_cast<Vector*>(args.out)[i] = value;
  }
}

template <typename T, int kWidth>
cudaError_t launch_width(const GateHeadsArgs& args, cudaStream_t stream) {
  constexpr int64_t kMaxBlocks = 65536;
  const int64_t packs = args.tokens * args.heads * (args.head_dim / kWidth);
  const int64_t blocks = (packs + kThreads - 1) / kThreads;
  gate_heads_kernel<T, kWidth>
      <<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(
          args);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const GateHeadsArgs& args, cudaStream_t stream) {
  constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
  const bool wide =
      args.head_dim % kWidth == 0 && is_aligned(args.heads_out) && is_aligned(args.out);
  return wide ? launch_width<T, kWidth>(args, stream) : launch_width<T, 1>(args, stream);
}

}  // namespace

cudaError_t launch_gate_heads(const GateHeadsArgs& args, cudaStream_t stream) {
  if (args.tokens < 0 || args.heads <= 0 || args.head_dim <= 0) return cudaErrorInvalidValue;
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
