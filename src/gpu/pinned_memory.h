// Host memory that a GPU can read by itself, without a copy through the driver's own buffers: that
// is what makes copies fast and lets them run beside kernels.
#pragma once

#include <ATen/core/Tensor.h>

namespace flotilla::gpu {

// Pins the memory of a tensor on the CPU, whoever allocated it, as long as this object lives.
class PinnedMemory {
 public:
  // Where the system does not allow it (a limit on locked memory), it is said in the log: copies
  // work all the same, slower.
  explicit PinnedMemory(at::Tensor tensor);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Never without CUDA.
  bool is_pinned() const { return is_pinned_; }

 private:
  at::Tensor tensor_;
  bool is_pinned_ = false;
};

}  // namespace flotilla::gpu
