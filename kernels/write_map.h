// What stands between two convolutions of a channels-innermost map, in one pass:
//   s = x + update + bias                 (the last two where there are some)
//   y = silu(s / sqrt(mean over channels of s^2 + eps)), or s itself
// s is written on its own where it is wanted. y goes into a buffer with borders, the input of the
// next convolution: frames are repeated in front and behind, a margin of rows and columns is left
// for others to fill. Arithmetic in float32; s is rounded to the type once and y is taken of that.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/data_type.h"

namespace flotilla::kernels {

struct WriteMapArgs {
  const void* x = nullptr;       // [samples, frames, height, width, channels]
  const void* update = nullptr;  // the same; null: none
  const void* bias = nullptr;    // [channels]; null: none
  void* sum = nullptr;           // like x, may be x or update; null: not wanted
  // [samples, front + frames + back, height + 2 * margin, width + 2 * margin, channels]; null: not
  // wanted.
  void* buffer = nullptr;
  int64_t samples = 0;
  int64_t frames = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int front = 0;
  int back = 0;
  int margin = 0;
  bool norm_silu = false;
  float eps = 0.0F;
  DataType dtype = DataType::float32;
};

// Whether the kernel takes these sizes: channels up to 2048 (bfloat16) or 1024 (float32) where they
// are multiples of 16 bytes and so are the addresses, else 256; samples * frames up to 65535.
bool can_write_map(const WriteMapArgs& args);

// Asynchronous on `stream`; capturable.
cudaError_t launch_write_map(const WriteMapArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
