// Device memory of each rank that the kernels of all ranks read and write directly: one cudaMalloc
// allocation a rank, opened by the others through CUDA IPC. The counterpart of PeerBuffers for
// GPUs; ranks may also share one GPU. Only in builds with CUDA.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"
#include "gpu/device_buffer.h"

namespace flotilla::comm {

class DevicePeerBuffers {
 public:
  // Collective. `bytes` (the same on all ranks) on `device`, which has an index, zeroed before any
  // rank returns. `communicator` must outlive the object. Errors (agreed): ErrorKind::memory, no
  // room; ErrorKind::machine, a rank's memory cannot be opened by another one.
  DevicePeerBuffers(Communicator& communicator, at::Device device, int64_t bytes);
  // Local: unmaps the peers' memory. Without close() own memory stays until the process ends, for
  // a peer may still write to it.
  ~DevicePeerBuffers();
  DevicePeerBuffers(const DevicePeerBuffers&) = delete;
  DevicePeerBuffers& operator=(const DevicePeerBuffers&) = delete;

  int64_t bytes() const { return bytes_; }
  at::Device device() const { return device_; }
  int rank() const { return communicator_.rank(); }
  int world_size() const { return communicator_.world_size(); }

  // An address of this process and this rank's device, aligned to 256 bytes; valid until close().
  // Graphs that name it hold for as long.
  std::byte* data(int rank) const { return data_.at(static_cast<size_t>(rank)); }
  // A contiguous tensor in the buffer of `rank`, on this rank's device: work on it runs there.
  // Valid until close().
  at::Tensor tensor(int rank, int64_t byte_offset, at::IntArrayRef sizes,
                    at::ScalarType dtype) const;

  // Collective, the regular end: waits for own work, unmaps the peers' memory, meets the others,
  // frees own memory. `timeout_s` is for the others.
  void close(double timeout_s = 60);

 private:
  void unmap_peers() noexcept;

  Communicator& communicator_;
  at::Device device_;
  int64_t bytes_;
  gpu::DeviceBuffer own_;
  std::vector<std::byte*> data_;  // in the order of the ranks; null once unmapped
};

}  // namespace flotilla::comm
