// Memory of each rank that all ranks of the machine can read and write directly: one POSIX shared
// memory object a rank, mapped by all and unlinked, so that the kernel frees it whatever happens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/shared_memory.h"

namespace flotilla::comm {

class PeerBuffers {
 public:
  // Collective. `bytes` of address space a rank; only what a rank has reserve()d may be touched, by
  // itself and by its peers. Errors (agreed, ErrorKind::machine): it cannot be made or mapped.
  PeerBuffers(Communicator& communicator, int64_t bytes);

  int64_t bytes() const { return bytes_; }
  // Backs a part of this rank's own buffer, zeroed when new. Local; peers may touch it after the
  // next agreement. Errors (ErrorKind::memory): no room.
  void reserve(int64_t offset, int64_t length) { own_->reserve(offset, length); }

  std::byte* data(int rank) const { return buffers_[static_cast<size_t>(rank)]->data(); }
  // A contiguous tensor in the buffer of `rank`. It keeps the mapping alive, not the contents.
  at::Tensor tensor(int rank, int64_t byte_offset, at::IntArrayRef sizes,
                    at::ScalarType dtype) const;

 private:
  int64_t bytes_;
  std::shared_ptr<SharedMemory> own_;
  std::vector<std::shared_ptr<SharedMemory>> buffers_;  // in the order of the ranks
};

}  // namespace flotilla::comm
