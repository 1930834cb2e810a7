#include "kernels/snake.h"

namespace flotilla::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 4 * kThreads;  // outputs of a block
constexpr int kHalo = 2 * kSnakeReach;

__device__ int64_t clamp_to(int64_t n, int64_t length) {
  return n < 0 ? 0 : (n >= length ? length - 1 : n);
}

// One tile of a row at a time: the samples around it, then the raised signal, both in shared
// memory.
__global__ void __launch_bounds__(kThreads) snake_kernel(const __grid_constant__ SnakeArgs args) {
  __shared__ float smem_x[kTile + 2 * kHalo];
  __shared__ float smem_y[2][kTile + 2 * kSnakeReach];
  float up[2][kSnakeTaps];
  float down[2][kSnakeTaps];
#pragma unroll
  for (int p = 0; p < 2; ++p) {
#pragma unroll
    for (int d = 0; d < kSnakeTaps; ++d) {
      up[p][d] = args.up[p * kSnakeTaps + d];
      down[p][d] = args.down[p * kSnakeTaps + d];
    }
  }
  const int64_t start = blockIdx.x * int64_t{kTile};
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const float* x = args.x + row * args.length;
    const float alpha = args.alpha[row % args.channels];
    const float inverse_beta = args.inverse_beta[row % args.channels];
    for (int i = static_cast<int>(threadIdx.x); i < kTile + 2 * kHalo; i += kThreads)
      smem_x[i] = x[clamp_to(start - kHalo + i, args.length)];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTile + 2 * kSnakeReach; i += kThreads) {
      const int64_t wanted = start - kSnakeReach + i;
      const int64_t n = clamp_to(wanted, args.length);
      // Of the sample n, the first of its taps in smem_x; at most kHalo lie on either side.
      const int first = static_cast<int>(n - start) + kHalo - kSnakeReach;
      float value[2] = {0.0F, 0.0F};
#pragma unroll
      for (int p = 0; p < 2; ++p) {
#pragma unroll
        for (int d = 0; d < kSnakeTaps; ++d) value[p] += up[p][d] * smem_x[first + d];
        const float sine = sinf(value[p] * alpha);
        value[p] += sine * inverse_beta * sine;
      }
      smem_y[0][i] = wanted >= args.length ? value[1] : value[0];
      smem_y[1][i] = wanted < 0 ? value[0] : value[1];
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTile; i += kThreads) {
      if (start + i >= args.length) break;
      float sum = 0.0F;
#pragma unroll
      for (int p = 0; p < 2; ++p) {
#pragma unroll
        for (int d = 0; d < kSnakeTaps; ++d) sum += down[p][d] * smem_y[p][i + d];
      }
      args.out[row * args.length + start + i] = sum;
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch_snake(const SnakeArgs& args, cudaStream_t stream) {
  constexpr int64_t kMaxRows = 65535;
  const int64_t tiles = (args.length + kTile - 1) / kTile;
  if (args.rows < 0 || args.channels <= 0 || args.length <= 0 || tiles > INT32_MAX)
    return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(tiles),
                  static_cast<unsigned>(args.rows < kMaxRows ? args.rows : kMaxRows));
  snake_kernel<<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace flotilla::kernels
