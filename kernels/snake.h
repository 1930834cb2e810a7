// The anti-aliased activation of the LTX-2.3 vocoder in one pass: a signal at twice its rate, there
// y + sin^2(alpha y) / beta, and back. Where the signal ends, the raised one goes on with its first
// and last sample. Filters come as phases (audio/fir_bank.h):
//   y[p, n]  = snake(sum_d up[p, d] * x[clamp(n + d - reach)])        n from 0 to length - 1
//   out[n]   = sum_{p, d} down[p, d] * y_held[p, n + d - reach]
// where y_held before the start is y[0, 0], and behind the end y[1, length - 1]. Float32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace flotilla::kernels {

constexpr int kSnakeReach = 3;
constexpr int kSnakeTaps = 2 * kSnakeReach + 1;

struct SnakeArgs {
  const float* x = nullptr;             // [rows, length]
  float* out = nullptr;                 // [rows, length], not x
  const float* alpha = nullptr;         // [channels]; row r is of channel r % channels
  const float* inverse_beta = nullptr;  // [channels]
  const float* up = nullptr;            // [2, kSnakeTaps]
  const float* down = nullptr;          // [2, kSnakeTaps]
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t length = 0;
};

// Asynchronous on `stream`; capturable. Any length from 1 on; at most 65,535 rows at once are
// spread over the grid, more take turns.
cudaError_t launch_snake(const SnakeArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
