// Owner of a CUDA event without timing: "all that was given to a stream up to here". Only for
// files that are built with CUDA.
#pragma once

#include <c10/core/Device.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <utility>

#include "gpu/cuda_check.h"

namespace flotilla::gpu {

class CudaEvent {
 public:
  explicit CudaEvent(at::Device device) {
    const c10::cuda::CUDAGuard guard(device);
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~CudaEvent() {
    if (event_ != nullptr) static_cast<void>(cudaEventDestroy(event_));
  }
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void record(cudaStream_t stream) {
    check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  // True before the first record(), and when the work is done. Errors: those of the work.
  bool is_done() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());  // it is no fault
      return false;
    }
    check_cuda(state, "work on the GPU");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace flotilla::gpu
