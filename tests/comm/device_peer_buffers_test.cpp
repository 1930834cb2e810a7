// Device memory that the ranks share: what one writes, the others see.
#include "comm/device_peer_buffers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "comm/gpu_test_device.h"
#include "gpu/device.h"

namespace flotilla::comm {
namespace {

Communicator& world() { return test::ranks().world(); }

class DevicePeerBuffersTest : public testing::Test {
 protected:
  void SetUp() override {
    FLOTILLA_NEEDS_GPUS();
    gpu_ = test::attached_gpu();
  }
  at::Device gpu_ = at::kCPU;
};

TEST_F(DevicePeerBuffersTest, StartZeroedAndAligned) {
  DevicePeerBuffers buffers(world(), gpu_, 1000);
  EXPECT_EQ(buffers.bytes(), 1000);
  for (int r = 0; r < world().world_size(); ++r) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.data(r)) % 256, 0U);
    EXPECT_EQ(buffers.tensor(r, 0, {1000}, at::kByte).sum().item<int64_t>(), 0);
  }
  buffers.close();
}

TEST_F(DevicePeerBuffersTest, EveryRankWritesToEveryOther) {
  const int n = world().world_size();
  const int64_t count = 4099;
  // Twice: memory that was closed can be made anew.
  for (int round = 0; round < 2; ++round) {
    // Two at a time: a handle must not stand for a neighbour in the same block.
    DevicePeerBuffers small(world(), gpu_, 64);
    DevicePeerBuffers buffers(world(), gpu_, n * count * 4);
    for (int peer = 0; peer < n; ++peer) {
      buffers.tensor(peer, world().rank() * count * 4, {count}, at::kFloat)
          .copy_(at::arange(count, gpu_) + 1000 * world().rank() + 10 * peer);
      small.tensor(peer, world().rank() * 4, {1}, at::kInt).fill_(7 + world().rank());
    }
    gpu::synchronize(gpu_);
    world().barrier("written", 60);
    for (int from = 0; from < n; ++from) {
      const at::Tensor got =
          buffers.tensor(world().rank(), from * count * 4, {count}, at::kFloat).cpu();
      EXPECT_TRUE(at::equal(got, at::arange(count) + 1000.0 * from + 10.0 * world().rank()));
      EXPECT_EQ(small.tensor(world().rank(), from * 4, {1}, at::kInt).item<int>(), 7 + from);
    }
    buffers.close();
    small.close();
    EXPECT_THROW(buffers.tensor(world().rank(), 0, {1}, at::kFloat), Error);
  }
}

TEST_F(DevicePeerBuffersTest, SizesThatDifferAreRefusedOnAllRanks) {
  FLOTILLA_NEEDS_RANKS(2);
  EXPECT_THROW(DevicePeerBuffers(world(), gpu_, 64 + 64 * world().rank()), AgreedError);
  world().barrier("all refused", 60);
}

TEST_F(DevicePeerBuffersTest, ABufferThatIsTooLargeIsAnErrorOfMemory) {
  try {
    DevicePeerBuffers(world(), gpu_, int64_t{1} << 50);
    ADD_FAILURE() << "made";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::memory);
  }
  // The next use of the GPU is not blamed for it.
  EXPECT_EQ(at::ones({4}, gpu_).sum().item<float>(), 4.0F);
}

}  // namespace
}  // namespace flotilla::comm
