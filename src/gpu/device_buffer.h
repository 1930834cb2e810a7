// Owner of one cudaMalloc allocation: memory that is shared with other processes or named by
// captured graphs must not come from Torch's caching allocator. Only in builds with CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace flotilla::gpu {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // Zeroed, and zero for all streams and peers when the constructor returns. `device` has an index.
  // Errors (ErrorKind::memory): no room.
  DeviceBuffer(at::Device device, int64_t bytes);
  // Waits for the device's work, as cudaFree does.
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  at::Device device() const { return device_; }
  // Gives the memory up without freeing it.
  std::byte* release() noexcept;

 private:
  at::Device device_ = at::kCPU;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A contiguous tensor over `data`, which stays its owner's: `device` is the one whose streams use
// it, also where the memory is a peer's.
at::Tensor device_view(std::byte* data, at::IntArrayRef sizes, at::ScalarType dtype,
                       at::Device device);

}  // namespace flotilla::gpu
