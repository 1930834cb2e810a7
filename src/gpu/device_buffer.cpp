#include "gpu/device_buffer.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>

#include <utility>

#include "base/text.h"
#include "gpu/cuda_check.h"

namespace flotilla::gpu {

DeviceBuffer::DeviceBuffer(at::Device device, int64_t bytes) : device_(device), bytes_(bytes) {
  FLOTILLA_ASSERT(device.is_cuda() && device.has_index() && bytes > 0);
  const c10::cuda::CUDAGuard guard(device);
  void* memory = nullptr;
  check_cuda(
      cudaMalloc(&memory, static_cast<size_t>(bytes)),
      fmt::format("cudaMalloc of {} on {}", human_bytes(static_cast<double>(bytes)), device.str()));
  data_ = static_cast<std::byte*>(memory);
  check_cuda(cudaMemset(data_, 0, static_cast<size_t>(bytes)), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

DeviceBuffer::~DeviceBuffer() {
  // Errors are those of work that was launched earlier, or of a process that ends.
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

std::byte* DeviceBuffer::release() noexcept {
  bytes_ = 0;
  return std::exchange(data_, nullptr);
}

at::Tensor device_view(std::byte* data, at::IntArrayRef sizes, at::ScalarType dtype,
                       at::Device device) {
  // The device is named: asked for it, CUDA would name the peer's for a peer's memory.
  return at::from_blob(
      data, sizes, [](void*) {}, at::TensorOptions(dtype).device(device), device);
}

}  // namespace flotilla::gpu
