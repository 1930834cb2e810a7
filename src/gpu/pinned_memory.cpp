#include "gpu/pinned_memory.h"

#include <ATen/ATen.h>

#ifdef FLOTILLA_CUDA
#include <cuda_runtime_api.h>

#include "base/log.h"
#include "base/text.h"
#endif

namespace flotilla::gpu {

#ifdef FLOTILLA_CUDA

PinnedMemory::PinnedMemory(at::Tensor tensor) : tensor_(std::move(tensor)) {
  const cudaError_t state =
      cudaHostRegister(tensor_.data_ptr(), tensor_.nbytes(), cudaHostRegisterDefault);
  is_pinned_ = state == cudaSuccess;
  if (is_pinned_) return;
  static_cast<void>(cudaGetLastError());  // it is no fault
  log::warn("gpu",
            "{} of host memory cannot be pinned ({}): copies to the GPU will be slow; see "
            "ulimit -l",
            human_bytes(static_cast<double>(tensor_.nbytes())), cudaGetErrorString(state));
}

PinnedMemory::~PinnedMemory() {
  if (is_pinned_) static_cast<void>(cudaHostUnregister(tensor_.data_ptr()));
}

#else

PinnedMemory::PinnedMemory(at::Tensor tensor) : tensor_(std::move(tensor)) {}
PinnedMemory::~PinnedMemory() = default;

#endif

}  // namespace flotilla::gpu
