#include "kernels/unpatchify.h"

#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;
// Values of a pixel row that a thread writes, and how many threads share a cell's row.
constexpr int kValues = 4;
constexpr int kParts = kPatchSize * kPixelChannels / kValues;

template <typename T>
__device__ float read(const void* from, int64_t at) {
  return to_float(static_cast<const T*>(from)[at]);
}

__device__ float to_unit_range(float value) {
  const float unit = (value + 1.0F) * 0.5F;
  return isnan(unit) ? unit : fminf(fmaxf(unit, 0.0F), 1.0F);
}

// blockIdx.y is the frame; threads follow the pixels in memory, so writes are in order and the
// patches are read from the cache.
template <typename T, typename Out, bool kUnitRange>
__global__ void __launch_bounds__(kThreads)
    unpatchify_kernel(const __grid_constant__ UnpatchifyArgs args) {
  constexpr int kChannels = kPatchSize * kPatchSize * kPixelChannels;
  const int height = static_cast<int>(args.height);
  const int width = static_cast<int>(args.width);
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int per_row = width * kParts;
  if (index >= height * kPatchSize * per_row) return;
  const int row = index / per_row;
  const int cell = index % per_row / kParts;
  const int part = index % kParts;
  const int64_t from =
      ((int64_t{blockIdx.y} * height + row / kPatchSize) * width + cell) * kChannels;
  Pack<Out, kValues> out;
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int value = part * kValues + i;
    const int x = value / kPixelChannels;
    const int c = value % kPixelChannels;
    const int channel = (c * kPatchSize + x) * kPatchSize + row % kPatchSize;
    float pixel = read<T>(args.patches, from + channel);
    if (args.bias != nullptr) pixel += read<T>(args.bias, channel);
    T rounded;
    from_float(pixel, rounded);
    pixel = to_float(rounded);
    from_float(kUnitRange ? to_unit_range(pixel) : pixel, out.values[i]);
  }
  const int64_t to = int64_t{blockIdx.y} * height * kPatchSize * per_row + index;
  static_cast<Pack<Out, kValues>*>(args.out)[to] = out;
}

template <typename T, typename Out, bool kUnitRange>
cudaError_t launch_kernel(const UnpatchifyArgs& args, cudaStream_t stream) {
  const int64_t threads = args.height * kPatchSize * args.width * kParts;
  const dim3 blocks(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                    static_cast<unsigned>(args.frames));
  unpatchify_kernel<T, Out, kUnitRange><<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const UnpatchifyArgs& args, cudaStream_t stream) {
  return args.unit_range ? launch_kernel<T, float, true>(args, stream)
                         : launch_kernel<T, T, false>(args, stream);
}

}  // namespace

cudaError_t launch_unpatchify(const UnpatchifyArgs& args, cudaStream_t stream) {
  constexpr int64_t kMaxFrames = 65535;            // of a grid's second axis
  constexpr int64_t kMaxCells = int64_t{1} << 26;  // of a frame
  if (args.frames < 1 || args.height < 1 || args.width < 1 || args.frames > kMaxFrames ||
      args.height * args.width > kMaxCells || !is_aligned(args.out))
    return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DataType::float32:
      return launch<float>(args, stream);
    case DataType::bfloat16:
      return launch<__nv_bfloat16>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace flotilla::kernels
