#include "kernels/frame_bytes.h"

#include "kernels/detail/full_grid.cuh"
#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;

__device__ uint8_t to_byte(float value) {
  return static_cast<uint8_t>(fminf(fmaxf(rintf(value * 255.0F), 0.0F), 255.0F));
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    frame_bytes_kernel(const __grid_constant__ FrameBytesArgs args) {
  const int64_t packs = args.count / kWidth;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < packs; i += step) {
    const auto values = reinterpret_cast<const Pack<float, kWidth>*>(args.frames)[i];
    Pack<uint8_t, kWidth> bytes;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) bytes.values[j] = to_byte(values.values[j]);
    reinterpret_cast<Pack<uint8_t, kWidth>*>(args.bytes)[i] = bytes;
  }
}

template <int kWidth>
cudaError_t launch(const FrameBytesArgs& args, cudaStream_t stream) {
  unsigned blocks = 0;
  const int64_t work = (args.count / kWidth + kThreads - 1) / kThreads;
  if (const auto error = full_grid(frame_bytes_kernel<kWidth>, kThreads, work, blocks);
      error != cudaSuccess)
    return error;
  frame_bytes_kernel<kWidth><<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_frame_bytes(const FrameBytesArgs& args, cudaStream_t stream) {
  constexpr int kWidth = 4;
  if (args.count < 0) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const bool wide =
      args.count % kWidth == 0 && is_aligned(args.frames) && is_aligned(args.bytes, kWidth);
  return wide ? launch<kWidth>(args, stream) : launch<1>(args, stream);
}

}  // namespace flotilla::kernels
