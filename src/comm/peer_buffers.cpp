#include "comm/peer_buffers.h"

#include <ATen/ATen.h>

#include <functional>
#include <numeric>

#include "comm/agreement.h"

namespace flotilla::comm {

PeerBuffers::PeerBuffers(Communicator& communicator, int64_t bytes) : bytes_(bytes) {
  own_ = agreed(communicator,
                [&] { return std::make_shared<SharedMemory>(SharedMemory::create(bytes)); });
  const std::vector<std::string> names = communicator.all_gather(own_->name());
  agreed(communicator, [&] {
    for (int r = 0; r < communicator.world_size(); ++r) {
      buffers_.push_back(r == communicator.rank()
                             ? own_
                             : std::make_shared<SharedMemory>(
                                   SharedMemory::open(names[static_cast<size_t>(r)], bytes)));
    }
  });
  own_->unlink();  // all have mapped it: agreed
}

at::Tensor PeerBuffers::tensor(int rank, int64_t byte_offset, at::IntArrayRef sizes,
                               at::ScalarType dtype) const {
  const int64_t count =
      std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<int64_t>());
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  FLOTILLA_ASSERT(byte_offset >= 0 && byte_offset % element == 0);
  FLOTILLA_ASSERT(count <= (bytes_ - byte_offset) / element);
  const auto& buffer = buffers_[static_cast<size_t>(rank)];
  return at::from_blob(
      buffer->data() + byte_offset, sizes, [buffer](void*) {}, at::TensorOptions(dtype));
}

}  // namespace flotilla::comm
