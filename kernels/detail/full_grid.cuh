// A grid that fills the device once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace flotilla::kernels {

// As many blocks as the device runs at once, but no more than `work` and at least one. `sharing`:
// kernels like it that run on the device at the same time.
template <typename Kernel>
cudaError_t full_grid(Kernel kernel, int threads, int64_t work, unsigned& blocks, int sharing = 1) {
  int device = 0;
  int processors = 0;
  int per_processor = 0;
  if (const auto error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const auto error =
          cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
      error != cudaSuccess)
    return error;
  if (const auto error =
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, threads, 0);
      error != cudaSuccess)
    return error;
  const int64_t at_once = int64_t{processors} * per_processor / (sharing > 1 ? sharing : 1);
  const int64_t wanted = at_once < work ? at_once : work;
  blocks = static_cast<unsigned>(wanted > 0 ? wanted : 1);
  return cudaSuccess;
}

}  // namespace flotilla::kernels
