#include "kernels/all_to_all.h"

#include "kernels/detail/exchange_end.cuh"
#include "kernels/detail/full_grid.cuh"
#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;
// Loads of a thread that are in flight at once.
constexpr int kUnroll = 4;
constexpr int kTileVectors = kThreads * kUnroll;

template <int kBytes>
struct VectorOf;
template <>
struct VectorOf<16> {
  using Type = uint4;
};
template <>
struct VectorOf<4> {
  using Type = uint32_t;
};
template <>
struct VectorOf<1> {
  using Type = uint8_t;
};

__host__ __device__ int64_t tiles_of(const BlockCopy& copy, int64_t vector_bytes) {
  const int64_t vectors = copy.batches * copy.rows * (copy.row_bytes / vector_bytes);
  return (vectors + kTileVectors - 1) / kTileVectors;
}

// Calls visit(batch, row, byte) for this thread's vectors of a tile, four of them or fewer.
template <int kBytes, typename Visit>
__device__ void visit_tile(const BlockCopy& copy, int64_t tile, Visit&& visit) {
  const int64_t row_vectors = copy.row_bytes / kBytes;
  const int64_t vectors = copy.batches * copy.rows * row_vectors;
  const int64_t first = tile * kTileVectors;
  const int64_t first_row = first / row_vectors;
  // Inside a tile 32 bits are enough; what lies before it may need 64.
  const auto offset = static_cast<uint32_t>(first - first_row * row_vectors);
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    const uint32_t index = threadIdx.x + i * kThreads;
    if (first + index >= vectors) return;
    int64_t row;
    int64_t column;
    if (row_vectors <= UINT32_MAX - kTileVectors) {
      const uint32_t in_tile = offset + index;
      const uint32_t rows = in_tile / static_cast<uint32_t>(row_vectors);
      row = first_row + rows;
      column = in_tile - rows * static_cast<uint32_t>(row_vectors);
    } else {
      row = (first + index) / row_vectors;
      column = first + index - row * row_vectors;
    }
    const int64_t batch = copy.batches == 1 ? 0 : row / copy.rows;
    visit(i, batch, row - batch * copy.rows, column * kBytes);
  }
}

template <int kBytes>
__device__ void copy_tile(const BlockCopy& copy, int64_t tile, const std::byte* from,
                          std::byte* to) {
  using Vector = typename VectorOf<kBytes>::Type;
  Vector values[kUnroll];
  visit_tile<kBytes>(copy, tile, [&](int i, int64_t batch, int64_t row, int64_t byte) {
    values[i] = *reinterpret_cast<const Vector*>(from + copy.from.at(batch, row) + byte);
  });
  visit_tile<kBytes>(copy, tile, [&](int i, int64_t batch, int64_t row, int64_t byte) {
    *reinterpret_cast<Vector*>(to + copy.to.at(batch, row) + byte) = values[i];
  });
}

// Tile t of a part goes to rank (own + t) mod N: at any time the blocks write to all peers, and
// each rank begins with another one.
template <int kBytes>
__global__ void __launch_bounds__(kThreads)
    all_to_all_kernel(const __grid_constant__ AllToAllArgs args, int64_t tiles_per_rank) {
  const ExchangePeers& peers = args.peers;
  begin_exchange(peers);
  const int64_t tiles_per_part = tiles_per_rank * peers.ranks;
  for (int64_t t = blockIdx.x; t < args.parts * tiles_per_part; t += gridDim.x) {
    const auto part = static_cast<int>(t / tiles_per_part);
    const int64_t in_part = t - part * tiles_per_part;
    const int64_t tile = in_part / peers.ranks;
    const auto peer = static_cast<int>((peers.rank + in_part) % peers.ranks);
    const BlockCopy& copy = args.part[part].to_rank[peer];
    if (tile >= tiles_of(copy, kBytes)) continue;
    copy_tile<kBytes>(copy, tile, static_cast<const std::byte*>(args.part[part].from),
                      peers.slot[peer]);
  }
  using Vector = typename VectorOf<kBytes>::Type;
  for (int64_t t = blockIdx.x; t < tiles_of(args.cleared, kBytes); t += gridDim.x) {
    visit_tile<kBytes>(args.cleared, t, [&](int, int64_t batch, int64_t row, int64_t byte) {
      *reinterpret_cast<Vector*>(peers.slot[peers.rank] + args.cleared.to.at(batch, row) + byte) =
          Vector{};
    });
  }
  end_exchange(peers);
}

bool divisible(const BlockPlace& place, int64_t bytes) {
  return place.offset % bytes == 0 && place.batch_stride % bytes == 0 &&
         place.row_stride % bytes == 0;
}

bool divisible(const BlockCopy& copy, int64_t bytes) {
  return copy.row_bytes % bytes == 0 && divisible(copy.from, bytes) && divisible(copy.to, bytes);
}

bool fits(const AllToAllArgs& args, int64_t bytes) {
  if (!divisible(args.cleared, bytes)) return false;
  for (int r = 0; r < args.peers.ranks; ++r) {
    if (!is_aligned(args.peers.slot[r], bytes)) return false;
    for (int p = 0; p < args.parts; ++p) {
      if (!divisible(args.part[p].to_rank[r], bytes)) return false;
    }
  }
  for (int p = 0; p < args.parts; ++p) {
    if (!is_aligned(args.part[p].from, bytes)) return false;
  }
  return true;
}

template <int kBytes>
cudaError_t launch(const AllToAllArgs& args, cudaStream_t stream) {
  int64_t tiles_per_rank = 0;
  for (int p = 0; p < args.parts; ++p) {
    for (int r = 0; r < args.peers.ranks; ++r) {
      const int64_t tiles = tiles_of(args.part[p].to_rank[r], kBytes);
      tiles_per_rank = tiles > tiles_per_rank ? tiles : tiles_per_rank;
    }
  }
  const int64_t tiles = tiles_per_rank * args.peers.ranks * args.parts;
  auto blocks = static_cast<unsigned>(args.blocks > 0 ? args.blocks : 0);
  if (blocks == 0) {
    if (const auto error = full_grid(all_to_all_kernel<kBytes>, kThreads, tiles, blocks,
                                     args.peers.ranks_on_device);
        error != cudaSuccess)
      return error;
  }
  all_to_all_kernel<kBytes><<<blocks, kThreads, 0, stream>>>(args, tiles_per_rank);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_all_to_all(const AllToAllArgs& args, cudaStream_t stream) {
  if (args.peers.ranks < 1 || args.peers.ranks > kMaxRanks || args.peers.rank < 0 ||
      args.peers.rank >= args.peers.ranks || args.parts < 0 || args.parts > kMaxExchangeParts)
    return cudaErrorInvalidValue;
  if (fits(args, 16)) return launch<16>(args, stream);
  if (fits(args, 4)) return launch<4>(args, stream);
  return launch<1>(args, stream);
}

}  // namespace flotilla::kernels
