#include "kernels/write_map.h"

#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 128;  // some 90 registers a thread: five blocks a processor

template <typename T, int kWidth>
__device__ void add(const Pack<T, kWidth>& other, Pack<T, kWidth>& x, const Pack<T, kWidth>& bias) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    from_float(to_float(x.values[j]) + to_float(other.values[j]) + to_float(bias.values[j]),
               x.values[j]);
  }
}

template <typename T, int kWidth>
__device__ Pack<T, kWidth> norm_silu(Pack<T, kWidth> x, float inverse_rms) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float normed = to_float(x.values[j]) * inverse_rms;
    from_float(__fdividef(normed, 1.0F + __expf(-normed)), x.values[j]);
  }
  return x;
}

template <typename Vector>
__device__ Vector zeros() {
  Vector pack;
  for (auto& value : pack.values) from_float(0.0F, value);
  return pack;
}

// Cells of a frame's plane that a block covers.
template <int kLanes, int kRows>
constexpr int kCellsPerBlock = kThreads / kLanes* kRows;

// blockIdx.y is the frame, blockIdx.x a run of cells of its plane. kLanes neighbouring threads
// share a cell and hold kItems vectors of it each; each such group has kRows cells in flight.
template <typename T, int kWidth, int kLanes, int kItems, int kRows>
__global__ void __launch_bounds__(kThreads)
    write_map_kernel(const __grid_constant__ WriteMapArgs args) {
  using Vector = Pack<T, kWidth>;
  constexpr int kGroups = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int packs = static_cast<int>(args.channels) / kWidth;
  const int plane = static_cast<int>(args.height * args.width);
  const int first_cell = static_cast<int>(blockIdx.x) * kCellsPerBlock<kLanes, kRows> +
                         static_cast<int>(threadIdx.x) / kLanes;
  const int64_t frame_begin = int64_t{blockIdx.y} * plane;

  Vector x[kRows][kItems];
  Vector update[kRows][kItems];
  Vector bias[kItems];
  const auto place = [&](int row, int item) {
    return (frame_begin + first_cell + row * kGroups) * packs + lane + item * kLanes;
  };
  const auto is_live = [&](int row, int item) {
    return first_cell + row * kGroups < plane && lane + item * kLanes < packs;
  };
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      x[row][item] = is_live(row, item) ? static_cast<const Vector*>(args.x)[place(row, item)]
                                        : zeros<Vector>();
      update[row][item] = args.update != nullptr && is_live(row, item)
                              ? static_cast<const Vector*>(args.update)[place(row, item)]
                              : zeros<Vector>();
    }
  }
#pragma unroll
  for (int item = 0; item < kItems; ++item) {
    bias[item] = args.bias != nullptr && lane + item * kLanes < packs
                     ? static_cast<const Vector*>(args.bias)[lane + item * kLanes]
                     : zeros<Vector>();
  }

#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    float squares = 0.0F;
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      add(update[row][item], x[row][item], bias[item]);
      squares += squares_of(x[row][item]);
      if (args.sum != nullptr && is_live(row, item))
        static_cast<Vector*>(args.sum)[place(row, item)] = x[row][item];
    }
    if (args.buffer == nullptr) continue;  // alike in all threads
    if (args.norm_silu) {
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2)
        squares += __shfl_xor_sync(0xFFFFFFFFU, squares, offset);
      const float inverse_rms = rsqrtf(squares / static_cast<float>(args.channels) + args.eps);
#pragma unroll
      for (int item = 0; item < kItems; ++item)
        x[row][item] = norm_silu<T, kWidth>(x[row][item], inverse_rms);
    }
    const int frames = static_cast<int>(args.frames);
    const int sample = static_cast<int>(blockIdx.y) / frames;
    const int frame = static_cast<int>(blockIdx.y) % frames;
    const int width = static_cast<int>(args.width);
    const int cell = first_cell + row * kGroups;
    const int margin = args.margin;
    const int cell_in_buffer =
        margin == 0 ? cell : (cell / width + margin) * (width + 2 * margin) + cell % width + margin;
    const int64_t padded_plane = (args.height + 2 * margin) * (args.width + 2 * margin);
    const int64_t own_frame =
        int64_t{sample} * (frames + args.front + args.back) + args.front + frame;
    // The first and the last frame are also written into the borders next to them.
    const int begin = frame == 0 ? -args.front : 0;
    const int end = frame == frames - 1 ? args.back : 0;
    for (int copy = begin; copy <= end; ++copy) {
      const int64_t to = ((own_frame + copy) * padded_plane + cell_in_buffer) * packs;
#pragma unroll
      for (int item = 0; item < kItems; ++item) {
        if (is_live(row, item))
          static_cast<Vector*>(args.buffer)[to + lane + item * kLanes] = x[row][item];
      }
    }
  }
}

// Vectors of a cell that the widest kernel holds.
constexpr int kMaxPacks = 256;

template <typename T>
constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(T));

template <typename T>
bool is_wide(const WriteMapArgs& args) {
  return args.channels % kVectorWidth<T> == 0 && is_aligned(args.x) && is_aligned(args.update) &&
         is_aligned(args.bias) && is_aligned(args.sum) && is_aligned(args.buffer);
}

template <typename T, int kWidth, int kLanes, int kItems, int kRows>
cudaError_t launch_cells(const WriteMapArgs& args, cudaStream_t stream) {
  constexpr int64_t kCells = kCellsPerBlock<kLanes, kRows>;
  const int64_t plane = args.height * args.width;
  const dim3 blocks(static_cast<unsigned>((plane + kCells - 1) / kCells),
                    static_cast<unsigned>(args.samples * args.frames));
  write_map_kernel<T, kWidth, kLanes, kItems, kRows><<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const WriteMapArgs& args, cudaStream_t stream) {
  constexpr int kWidth = kVectorWidth<T>;
  if (!is_wide<T>(args)) return launch_cells<T, 1, 32, kMaxPacks / 32, 1>(args, stream);
  // Four vectors in flight a thread, and as few idle lanes as can be.
  const int64_t packs = args.channels / kWidth;
  if (packs <= 16) return launch_cells<T, kWidth, 16, 1, 4>(args, stream);
  if (packs <= 32) return launch_cells<T, kWidth, 32, 1, 4>(args, stream);
  if (packs <= 64) return launch_cells<T, kWidth, 32, 2, 2>(args, stream);
  if (packs <= 128) return launch_cells<T, kWidth, 32, 4, 1>(args, stream);
  return launch_cells<T, kWidth, 32, kMaxPacks / 32, 1>(args, stream);
}

template <typename T>
bool can_take_channels(const WriteMapArgs& args) {
  return args.channels <= (is_wide<T>(args) ? kVectorWidth<T> * kMaxPacks : kMaxPacks);
}

}  // namespace

bool can_write_map(const WriteMapArgs& args) {
  constexpr int64_t kMaxFrames = 65535;  // of a grid's second axis
  constexpr int64_t kMaxPlane = int64_t{1} << 30;
  if (args.samples < 1 || args.frames < 1 || args.height < 1 || args.width < 1 ||
      args.channels < 1 || args.front < 0 || args.back < 0 || args.margin < 0 ||
      args.samples * args.frames > kMaxFrames ||
      (args.height + 2 * args.margin) * (args.width + 2 * args.margin) > kMaxPlane)
    return false;
  switch (args.dtype) {
    case DataType::float32:
      return can_take_channels<float>(args);
    case DataType::bfloat16:
      return can_take_channels<__nv_bfloat16>(args);
  }
  return false;
}

cudaError_t launch_write_map(const WriteMapArgs& args, cudaStream_t stream) {
  if (!can_write_map(args)) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DataType::float32:
      return launch<float>(args, stream);
    case DataType::bfloat16:
      return launch<__nv_bfloat16>(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace flotilla::kernels
