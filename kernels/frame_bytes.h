// Frames in [0, 1] to bytes: round(255 * x), halves to even, clamped to 0 to 255.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace flotilla::kernels {

struct FrameBytesArgs {
  const float* frames = nullptr;
  uint8_t* bytes = nullptr;
  int64_t count = 0;
};

// Asynchronous on `stream`; capturable. Four values a thread where both pointers allow.
cudaError_t launch_frame_bytes(const FrameBytesArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
