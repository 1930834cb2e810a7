#include "kernels/unfold_channels.h"

#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;

template <typename T>
constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(T));

// One thread a cell and a vector of channels of the result: it reads p*q*r vectors that lie side by
// side, turns them around in registers and writes one to each of the p*q*r cells.
template <typename T, int kP, int kQ, int kR>
__global__ void __launch_bounds__(kThreads)
    unfold_channels_kernel(const __grid_constant__ UnfoldChannelsArgs args) {
  constexpr int kWidth = kVectorWidth<T>;
  constexpr int kCells = kP * kQ * kR;
  using Vector = Pack<T, kWidth>;
  const int packs = static_cast<int>(args.channels) / kWidth;
  const int width = static_cast<int>(args.width);
  const int plane = static_cast<int>(args.height) * width;
  const int index = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (index >= plane * packs) return;
  const int cell = index / packs;
  const int pack = index % packs;
  const int64_t cell_in_map = int64_t{blockIdx.y} * plane + cell;

  float values[kCells * kWidth];  // [channel, cell]
  const auto add = [&](const void* from, int64_t vector, bool first) {
    Vector read[kCells];
#pragma unroll
    for (int i = 0; i < kCells; ++i) read[i] = static_cast<const Vector*>(from)[vector + i];
#pragma unroll
    for (int i = 0; i < kCells; ++i) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float value = to_float(read[i].values[j]);
        values[i * kWidth + j] = first ? value : values[i * kWidth + j] + value;
      }
    }
  };
  add(args.wide, (cell_in_map * packs + pack) * kCells, true);
  if (args.bias != nullptr) add(args.bias, int64_t{pack} * kCells, false);
  if (args.skip != nullptr) {
    const int skip_packs = static_cast<int>(args.skip_channels) / kWidth;
    add(args.skip, (cell_in_map * skip_packs + pack % skip_packs) * kCells, false);
  }

  const int frames = static_cast<int>(args.frames);
  const int sample = static_cast<int>(blockIdx.y) / frames;
  const int frame = static_cast<int>(blockIdx.y) % frames;
  const int64_t out_frames = args.frames * kP - args.dropped;
#pragma unroll
  for (int i = 0; i < kP; ++i) {
    const int out_frame = frame * kP + i - args.dropped;
    if (out_frame < 0) continue;
#pragma unroll
    for (int j = 0; j < kQ; ++j) {
#pragma unroll
      for (int k = 0; k < kR; ++k) {
        Vector out;
#pragma unroll
        for (int c = 0; c < kWidth; ++c)
          from_float(values[((c * kP + i) * kQ + j) * kR + k], out.values[c]);
        const int64_t row =
            (sample * out_frames + out_frame) * args.height * kQ + int64_t{cell / width} * kQ + j;
        const int64_t to = (row * width + cell % width) * kR + k;
        static_cast<Vector*>(args.out)[to * packs + pack] = out;
      }
    }
  }
}

template <typename T, int kP, int kQ, int kR>
cudaError_t launch_stride(const UnfoldChannelsArgs& args, cudaStream_t stream) {
  const int64_t threads = args.height * args.width * args.channels / kVectorWidth<T>;
  const dim3 blocks(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                    static_cast<unsigned>(args.samples * args.frames));
  unfold_channels_kernel<T, kP, kQ, kR><<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

bool has_stride(const UnfoldChannelsArgs& args, int p, int q, int r) {
  return args.stride[0] == p && args.stride[1] == q && args.stride[2] == r;
}

template <typename T>
cudaError_t launch(const UnfoldChannelsArgs& args, cudaStream_t stream) {
  if (has_stride(args, 2, 2, 2)) return launch_stride<T, 2, 2, 2>(args, stream);
  if (has_stride(args, 1, 2, 2)) return launch_stride<T, 1, 2, 2>(args, stream);
  return launch_stride<T, 2, 1, 1>(args, stream);
}

}  // namespace

bool can_unfold_channels(const UnfoldChannelsArgs& args) {
  constexpr int64_t kMaxFrames = 65535;              // of a grid's second axis
  constexpr int64_t kMaxThreads = int64_t{1} << 30;  // of a frame
  const int64_t vector = args.dtype == DataType::bfloat16 ? 8 : 4;
  return (has_stride(args, 2, 2, 2) || has_stride(args, 1, 2, 2) || has_stride(args, 2, 1, 1)) &&
         args.samples >= 1 && args.frames >= 1 && args.height >= 1 && args.width >= 1 &&
         args.channels >= 1 && args.samples * args.frames <= kMaxFrames &&
         args.height * args.width * (args.channels / vector) <= kMaxThreads &&
         args.channels % vector == 0 &&
         (args.skip == nullptr || (args.skip_channels >= 1 && args.skip_channels % vector == 0)) &&
         args.dropped >= 0 && args.dropped < args.stride[0] && is_aligned(args.wide) &&
         is_aligned(args.bias) && is_aligned(args.skip) && is_aligned(args.out);
}

cudaError_t launch_unfold_channels(const UnfoldChannelsArgs& args, cudaStream_t stream) {
  if (!can_unfold_channels(args)) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DataType::float32:
      return launch<float>(args, stream);
    case DataType::bfloat16:
      return launch<__nv_bfloat16>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace flotilla::kernels
