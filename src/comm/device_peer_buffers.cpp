#include "comm/device_peer_buffers.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "comm/agreement.h"
#include "gpu/cuda_check.h"

namespace flotilla::comm {
namespace {

// Smaller allocations share a block of this size, and a handle stands for the whole block: a
// peer's mapping would start at another buffer.
constexpr int64_t kBlockBytes = int64_t{2} << 20;
constexpr double kCleanUpTimeoutS = 60;

std::string handle_of(const gpu::DeviceBuffer& buffer) {
  cudaIpcMemHandle_t handle{};
  gpu::check_cuda(cudaIpcGetMemHandle(&handle, buffer.data()), "cudaIpcGetMemHandle",
                  ErrorKind::machine);
  return {reinterpret_cast<const char*>(&handle), sizeof(handle)};
}

std::byte* open(const std::string& bytes, int world_rank) {
  cudaIpcMemHandle_t handle{};
  FLOTILLA_ASSERT(bytes.size() == sizeof(handle));
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  void* memory = nullptr;
  try {
    gpu::check_cuda(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
                    "cudaIpcOpenMemHandle", ErrorKind::machine);
  } catch (Error& error) {
    error.add_context(
        fmt::format("GPU memory of rank {} cannot be reached; every rank must see the GPUs of all "
                    "(--gpus-per-node instead of --gpus-per-task, --gpu-bind=none), in containers "
                    "with one IPC and process namespace; or use sp.transport: nccl",
                    world_rank));
    throw;
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

DevicePeerBuffers::DevicePeerBuffers(Communicator& communicator, at::Device device, int64_t bytes)
    : communicator_(communicator), device_(device), bytes_(bytes) {
  const c10::cuda::CUDAGuard guard(device);
  const std::string handle = agreed(communicator, [&] {
    own_ = gpu::DeviceBuffer(device, (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
    return world_size() > 1 ? handle_of(own_) : std::string();
  });
  agree_on(communicator, "the size of the device buffers that the ranks share", bytes);
  const auto handles = communicator.all_gather(handle);
  data_.assign(handles.size(), nullptr);
  data_[static_cast<size_t>(rank())] = own_.data();
  try {
    agreed(communicator, [&] {
      for (size_t r = 0; r < handles.size(); ++r) {
        if (data_[r] == nullptr)
          data_[r] = open(handles[r], communicator.world_rank(static_cast<int>(r)));
      }
    });
  } catch (const AgreedError&) {
    // Those that could open a peer's memory let go of it before that one frees it.
    unmap_peers();
    communicator.barrier("close device buffers", kCleanUpTimeoutS);
    throw;
  }
}

DevicePeerBuffers::~DevicePeerBuffers() {
  unmap_peers();
  own_.release();
}

void DevicePeerBuffers::unmap_peers() noexcept {
  static_cast<void>(cudaSetDevice(device_.index()));  // the rank's only one: nothing to restore
  for (size_t r = 0; r < data_.size(); ++r) {
    if (static_cast<int>(r) == rank() || data_[r] == nullptr) continue;
    // An error is that of earlier work, which has been or will be told.
    static_cast<void>(cudaIpcCloseMemHandle(data_[r]));
    data_[r] = nullptr;
  }
}

at::Tensor DevicePeerBuffers::tensor(int rank, int64_t byte_offset, at::IntArrayRef sizes,
                                     at::ScalarType dtype) const {
  const int64_t count =
      std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<int64_t>());
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  FLOTILLA_ASSERT(data(rank) != nullptr && byte_offset >= 0 && byte_offset % element == 0);
  FLOTILLA_ASSERT(count <= (bytes_ - byte_offset) / element);
  return gpu::device_view(data(rank) + byte_offset, sizes, dtype, device_);
}

void DevicePeerBuffers::close(double timeout_s) {
  if (own_.data() == nullptr) return;
  const c10::cuda::CUDAGuard guard(device_);
  gpu::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  unmap_peers();
  data_.assign(data_.size(), nullptr);
  communicator_.barrier("close device buffers", timeout_s);
  own_ = gpu::DeviceBuffer();
}

}  // namespace flotilla::comm
