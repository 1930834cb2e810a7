// Channels of a 4 x 4 patch to RGB pixels:
//   out[f, h*4 + y, w*4 + x, c] = patches[f, h, w, (c*4 + x)*4 + y] + bias
// and, where frames are asked for, (v + 1) / 2 clamped to [0, 1], NaN kept.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/data_type.h"

namespace flotilla::kernels {

constexpr int kPatchSize = 4;
constexpr int kPixelChannels = 3;

struct UnpatchifyArgs {
  const void* patches = nullptr;  // [frames, height, width, 48]
  const void* bias = nullptr;     // [48]; null: none
  // [frames, height*4, width*4, 3], at a multiple of 16 bytes: the patches' type, or float32 with
  // unit_range.
  void* out = nullptr;
  int64_t frames = 0;  // of all samples, up to 65535
  int64_t height = 0;
  int64_t width = 0;
  bool unit_range = false;
  DataType dtype = DataType::float32;
};

// Asynchronous on `stream`; capturable.
cudaError_t launch_unpatchify(const UnpatchifyArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
