#include "kernels/qk_norm_rope.h"

#include "kernels/detail/exchange_end.cuh"
#include "kernels/detail/full_grid.cuh"
#include "kernels/detail/vector.cuh"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// A thread holds this many pairs of vectors of a token's part in registers, at most.
constexpr int kMaxItems = 4;
// With one pair a thread: enough bytes in flight to hide the memory's latency.
constexpr int kBlocksPerProcessor = 3;

template <typename T, int kWidth>
struct Pair {  // the same columns of a head's first and second half
  Pack<T, kWidth> low;
  Pack<T, kWidth> high;
};

struct Place {
  int64_t head;
  int64_t column;  // of the first half
};

// Where in its head this thread's item lies, as elements.
template <int kWidth>
__device__ Place place_of(const QkNormRopeArgs& args, int item) {
  const auto packs_per_half = static_cast<uint32_t>(args.head_dim / 2 / kWidth);
  const uint32_t index = threadIdx.x + item * kThreads;
  const uint32_t head = index / packs_per_half;
  return {head, int64_t{index - head * packs_per_half} * kWidth};
}

// The sums of all parts over the block, in every thread. `buffer` alternates from call to call, so
// that one barrier a call is enough.
template <int kParts>
__device__ void block_sums(float (&sums)[kParts], int buffer) {
  __shared__ float smem_sums[2][kParts][kWarps];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const float sum = warp_sum(sums[p]);
    if (threadIdx.x % 32 == 0) smem_sums[buffer][p][threadIdx.x / 32] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    sums[p] = 0.0F;
    for (int warp = 0; warp < kWarps; ++warp) sums[p] += smem_sums[buffer][p][warp];
  }
}

template <typename T, int kWidth>
__device__ void normalise(Pair<T, kWidth>& pair, const NormRopePart& part, int64_t column,
                          int64_t half, float inverse_rms, float (&low)[kWidth],
                          float (&high)[kWidth]) {
  const auto* weight = static_cast<const T*>(part.weight);
  const auto low_weight = *reinterpret_cast<const Pack<T, kWidth>*>(weight + column);
  const auto high_weight = *reinterpret_cast<const Pack<T, kWidth>*>(weight + column + half);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    low[j] = to_float(pair.low.values[j]) * inverse_rms * to_float(low_weight.values[j]);
    high[j] = to_float(pair.high.values[j]) * inverse_rms * to_float(high_weight.values[j]);
  }
}

// Angles of the same columns of a head.
template <typename T, int kWidth>
struct Angles {
  Pack<T, kWidth> cos;
  Pack<T, kWidth> sin;
};

template <typename T, int kWidth>
__device__ Angles<T, kWidth> load_angles(const QkNormRopeArgs& args, int64_t offset) {
  return {*reinterpret_cast<const Pack<T, kWidth>*>(static_cast<const T*>(args.cos) + offset),
          *reinterpret_cast<const Pack<T, kWidth>*>(static_cast<const T*>(args.sin) + offset)};
}

template <typename T, int kWidth>
__device__ void rotate(const Angles<T, kWidth>& angles, float (&low)[kWidth],
                       float (&high)[kWidth]) {
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float c = to_float(angles.cos.values[j]);
    const float s = to_float(angles.sin.values[j]);
    const float a = low[j];
    const float b = high[j];
    low[j] = a * c - b * s;
    high[j] = b * c + a * s;
  }
}

// One block a token at a time, all parts of it together and the angles as well, so that all loads
// of a token are in flight before the first is used.
template <typename T, int kWidth, int kParts, int kItems, bool kSend>
__global__ void __launch_bounds__(kThreads, kItems == 1 ? kBlocksPerProcessor : 1)
    qk_norm_rope_kernel(const __grid_constant__ QkNormRopeArgs args,
                        const __grid_constant__ ExchangePeers peers) {
  using Vector = Pack<T, kWidth>;
  if (kSend) begin_exchange(peers);
  const int64_t half = args.head_dim / 2;
  const int64_t dim = args.heads * args.head_dim;
  const int64_t heads_per_rank = args.heads / peers.ranks;
  const auto packs = static_cast<uint32_t>(args.heads * half / kWidth);
  int buffer = 0;
  for (int64_t row = blockIdx.x; row < args.batches * args.live_tokens; row += gridDim.x) {
    const int64_t batch = args.batches == 1 ? 0 : row / args.live_tokens;
    const int64_t token = row - batch * args.live_tokens;
    const int64_t source = (batch * args.tokens + token) * dim;

    Pair<T, kWidth> pairs[kParts][kItems];
    Angles<T, kWidth> angles[kItems];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const auto* from = static_cast<const T*>(args.part[p].from) + source;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (threadIdx.x + i * kThreads >= packs) continue;
        const Place place = place_of<kWidth>(args, i);
        const T* low = from + place.head * args.head_dim + place.column;
        pairs[p][i].low = *reinterpret_cast<const Vector*>(low);
        pairs[p][i].high = *reinterpret_cast<const Vector*>(low + half);
      }
    }

    if (args.cos != nullptr) {
      const int64_t table_batch = args.table_batches == 1 ? 0 : batch;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (threadIdx.x + i * kThreads >= packs) continue;
        const Place place = place_of<kWidth>(args, i);
        angles[i] = load_angles<T, kWidth>(
            args,
            ((table_batch * args.heads + place.head) * args.tokens + token) * half + place.column);
      }
    }

    float sums[kParts];
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      sums[p] = 0.0F;
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (threadIdx.x + i * kThreads >= packs) continue;
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          const float low = to_float(pairs[p][i].low.values[j]);
          const float high = to_float(pairs[p][i].high.values[j]);
          sums[p] += low * low + high * high;
        }
      }
    }
    block_sums(sums, buffer);
    buffer ^= 1;

#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      const NormRopePart& part = args.part[p];
      const float inverse_rms = rsqrtf(sums[p] / static_cast<float>(dim) + args.eps);
#pragma unroll
      for (int i = 0; i < kItems; ++i) {
        if (threadIdx.x + i * kThreads >= packs) continue;
        const Place place = place_of<kWidth>(args, i);
        Pair<T, kWidth>& pair = pairs[p][i];
        if (part.weight != nullptr) {
          float low[kWidth];
          float high[kWidth];
          normalise(pair, part, place.head * args.head_dim + place.column, half, inverse_rms, low,
                    high);
          if (part.rotated) rotate(angles[i], low, high);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            from_float(low[j], pair.low.values[j]);
            from_float(high[j], pair.high.values[j]);
          }
        }
        T* to;
        if (kSend) {
          const auto peer = static_cast<int>(static_cast<uint32_t>(place.head) /
                                             static_cast<uint32_t>(heads_per_rank));
          const int64_t head = place.head - peer * heads_per_rank;
          to = reinterpret_cast<T*>(peers.slot[peer] + part.to_rank[peer].at(batch, token)) +
               head * args.head_dim + place.column;
        } else {
          to = static_cast<T*>(part.out) + source + place.head * args.head_dim + place.column;
        }
        *reinterpret_cast<Vector*>(to) = pair.low;
        *reinterpret_cast<Vector*>(to + half) = pair.high;
      }
    }
  }
  if (kSend) end_exchange(peers);
}

template <typename T, int kWidth, int kParts, int kItems, bool kSend>
cudaError_t launch_sized(const QkNormRopeArgs& args, const ExchangePeers& peers,
                         cudaStream_t stream) {
  const auto kernel = qk_norm_rope_kernel<T, kWidth, kParts, kItems, kSend>;
  unsigned blocks = 0;
  if (const auto error = full_grid(kernel, kThreads, args.batches * args.live_tokens, blocks,
                                   peers.ranks_on_device);
      error != cudaSuccess)
    return error;
  kernel<<<blocks, kThreads, 0, stream>>>(args, peers);
  return cudaGetLastError();
}

template <typename T, int kWidth, int kParts, bool kSend>
cudaError_t launch_parts(const QkNormRopeArgs& args, const ExchangePeers& peers,
                         cudaStream_t stream) {
  const int64_t packs = args.heads * args.head_dim / 2 / kWidth;
  if (packs <= kThreads) return launch_sized<T, kWidth, kParts, 1, kSend>(args, peers, stream);
  if (packs <= 2 * kThreads) return launch_sized<T, kWidth, kParts, 2, kSend>(args, peers, stream);
  return launch_sized<T, kWidth, kParts, kMaxItems, kSend>(args, peers, stream);
}

template <typename T, int kWidth, bool kSend>
cudaError_t launch_width(const QkNormRopeArgs& args, const ExchangePeers& peers,
                         cudaStream_t stream) {
  switch (args.parts) {
    case 1:
      return launch_parts<T, kWidth, 1, kSend>(args, peers, stream);
    case 2:
      return launch_parts<T, kWidth, 2, kSend>(args, peers, stream);
    default:
      return launch_parts<T, kWidth, 3, kSend>(args, peers, stream);
  }
}

template <typename T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <typename T>
bool is_wide(const QkNormRopeArgs& args) {
  if (args.head_dim / 2 % kWide<T> != 0) return false;
  if (!is_aligned(args.cos) || !is_aligned(args.sin)) return false;
  for (int p = 0; p < args.parts; ++p) {
    const NormRopePart& part = args.part[p];
    for (const void* pointer : {part.from, part.weight, static_cast<const void*>(part.out)}) {
      if (!is_aligned(pointer)) return false;
    }
    for (const BlockPlace& place : part.to_rank) {
      if (place.offset % 16 != 0 || place.row_stride % 16 != 0 || place.batch_stride % 16 != 0)
        return false;
    }
  }
  return true;
}

template <bool kSend>
cudaError_t launch(const QkNormRopeArgs& args, const ExchangePeers& peers, cudaStream_t stream) {
  if (!can_qk_norm_rope(args) || args.heads % peers.ranks != 0) return cudaErrorInvalidValue;
  switch (args.dtype) {
    case DataType::float32:
      return is_wide<float>(args) ? launch_width<float, kWide<float>, kSend>(args, peers, stream)
                                  : launch_width<float, 1, kSend>(args, peers, stream);
    case DataType::bfloat16:
      return is_wide<__nv_bfloat16>(args)
                 ? launch_width<__nv_bfloat16, kWide<__nv_bfloat16>, kSend>(args, peers, stream)
                 : launch_width<__nv_bfloat16, 1, kSend>(args, peers, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

bool can_qk_norm_rope(const QkNormRopeArgs& args) {
  if (args.parts < 1 || args.parts > kMaxNormRopeParts || args.heads < 1 || args.head_dim < 2 ||
      args.head_dim % 2 != 0 || args.batches < 0 || args.tokens < 0 ||
      args.live_tokens > args.tokens)
    return false;
  const bool wide =
      args.dtype == DataType::float32 ? is_wide<float>(args) : is_wide<__nv_bfloat16>(args);
  const int64_t element_bytes = args.dtype == DataType::float32 ? 4 : 2;
  const int64_t width = wide ? 16 / element_bytes : 1;
  return args.heads * (args.head_dim / 2 / width) <= kMaxItems * kThreads;
}

cudaError_t launch_qk_norm_rope(const QkNormRopeArgs& args, cudaStream_t stream) {
  return launch<false>(args, ExchangePeers(), stream);
}

cudaError_t launch_qk_norm_rope_send(const QkNormRopeArgs& args, const ExchangePeers& peers,
                                     cudaStream_t stream) {
  if (peers.ranks < 1 || peers.ranks > kMaxRanks) return cudaErrorInvalidValue;
  return launch<true>(args, peers, stream);
}

}  // namespace flotilla::kernels
