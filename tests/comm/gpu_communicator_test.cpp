// Collective calls on tensors of GPUs, through NCCL or, where ranks share a GPU, through the host:
// the same bytes as the calls on tensors of the host give.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <array>

#include <cstring>

#include "comm/agreement.h"
#include "comm/communicator.h"
#include "comm/gpu_test_device.h"
#include "comm/head_exchange.h"

namespace flotilla::comm {
namespace {

using testing::HasSubstr;

Communicator& world() { return test::ranks().transformer(); }
int last_rank() { return world().world_size() - 1; }

class GpuCommunicatorTest : public testing::Test {
 protected:
  void SetUp() override {
    FLOTILLA_NEEDS_GPUS();
    gpu_ = test::attached_gpu();
  }
  at::Tensor marked(int rank, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) const {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return (at::arange(count, at::kLong).view(shape) + 100 * rank).to(gpu_, dtype);
  }

  at::Device gpu_ = at::kCPU;
};

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous();
  const at::Tensor y = b.cpu().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

TEST_F(GpuCommunicatorTest, EveryRankHasADeviceAndLinks) {
  EXPECT_TRUE(gpu_.is_cuda());
  const auto& links = test::ranks().links();
  ASSERT_EQ(links.size(), test::ranks().facts().size());
  for (size_t r = 0; r < links.size(); ++r) EXPECT_EQ(links[r][r], gpu::PeerLink::same_device);
}

TEST_F(GpuCommunicatorTest, BroadcastSendsTheRootsValues) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
    for (int root = 0; root <= last_rank(); ++root) {
      at::Tensor tensor = marked(world().rank(), {3, 5}, dtype);
      world().broadcast(tensor, root);
      EXPECT_TRUE(tensor.device() == gpu_);
      EXPECT_TRUE(same_bytes(tensor, marked(root, {3, 5}, dtype)));
    }
  }
}

TEST_F(GpuCommunicatorTest, BroadcastFillsTensorsThatAreNotContiguous) {
  at::Tensor whole = at::zeros({4, 6}, gpu_);
  at::Tensor part = whole.narrow(1, 1, 3);
  if (world().is_driver()) part.copy_(marked(0, {4, 3}));
  world().broadcast(part, 0);
  EXPECT_TRUE(same_bytes(whole.narrow(1, 1, 3), marked(0, {4, 3})));
  EXPECT_EQ(whole.narrow(1, 4, 2).abs().sum().item<float>(), 0);
}

TEST_F(GpuCommunicatorTest, AllGatherKeepsTheOrderOfTheRanks) {
  const at::Tensor all = world().all_gather(marked(world().rank(), {2, 3}, at::kBFloat16));
  ASSERT_EQ(all.size(0), world().world_size());
  for (int r = 0; r <= last_rank(); ++r)
    EXPECT_TRUE(same_bytes(all.select(0, r), marked(r, {2, 3}, at::kBFloat16)));
  EXPECT_EQ(world().all_gather(at::empty({0, 4}, gpu_)).sizes(),
            (std::vector<int64_t>{world().world_size(), 0, 4}));
}

TEST_F(GpuCommunicatorTest, ResultsAreOrderedBehindWorkOnTheStream) {
  at::Tensor work = at::full({2048, 2048}, 1.0 / 2048, gpu_);
  for (int i = 0; i < 20; ++i) work = work.matmul(work) * 1.0;
  const at::Tensor all = world().all_gather(work + world().rank());
  for (int r = 0; r <= last_rank(); ++r) {
    EXPECT_NEAR(all[r].min().item<float>(), r + 1.0 / 2048, 1e-4);
    EXPECT_NEAR(all[r].max().item<float>(), r + 1.0 / 2048, 1e-4);
  }
}

TEST_F(GpuCommunicatorTest, AllGatherInPlaceTakesRangesOfAnyLength) {
  for (const int64_t unit : {0, 1, 1000, 333333}) {
    std::vector<ByteRange> ranges;
    int64_t at = 3;
    for (int r = 0; r <= last_rank(); ++r) {
      ranges.push_back({at, at + r * unit});
      at = ranges.back().end + 1;
    }
    at::Tensor host = at::full({at + 4}, 200 + world().rank(), at::kByte);
    const ByteRange& own = ranges[static_cast<size_t>(world().rank())];
    host.narrow(0, own.begin, own.size())
        .copy_(at::arange(own.size(), at::kLong).add(7 * world().rank()).remainder(190));
    at::Tensor device = host.to(gpu_);
    const void* memory = device.const_data_ptr();
    world().all_gather_in_place(host, ranges);
    world().all_gather_in_place(device, ranges);
    EXPECT_TRUE(same_bytes(device, host)) << unit;
    EXPECT_EQ(device.const_data_ptr(), memory);
  }
}

TEST_F(GpuCommunicatorTest, AllReduceGivesTheBytesOfTheHost) {
  at::manual_seed(world().rank());
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong}) {
    for (const int64_t count : {1, 7, 1000, 40961}) {
      at::Tensor host = (at::randn({count}) * 1e3).to(dtype);
      at::Tensor device = host.to(gpu_);
      world().all_reduce_sum(host);
      world().all_reduce_sum(device);
      EXPECT_TRUE(same_bytes(device, host)) << count << " of " << dtype;
    }
  }
  at::Tensor strided = marked(world().rank(), {3, 4}, at::kLong).t();
  const at::Tensor expected = world().all_gather(strided).sum(0);
  world().all_reduce_sum(strided);
  EXPECT_TRUE(same_bytes(strided, expected));
}

TEST_F(GpuCommunicatorTest, MessagesPassRoundTheRing) {
  FLOTILLA_NEEDS_RANKS(2);
  const int next = (world().rank() + 1) % world().world_size();
  const int previous = (world().rank() + last_rank()) % world().world_size();
  at::Tensor large = at::zeros({300, 1000}, gpu_);
  at::Tensor small = at::zeros({3}, at::TensorOptions(at::kBFloat16).device(gpu_));
  const auto give = [&] {
    world().send(marked(world().rank(), {300, 1000}), next, 1);
    world().send("from " + std::to_string(world().rank()), next, 2);
    world().send(marked(world().rank(), {3}, at::kBFloat16), next, 3);
  };
  const auto take = [&] {
    world().receive(large, previous, 1);
    EXPECT_EQ(world().receive_text(previous, 2), "from " + std::to_string(previous));
    world().receive(small, previous, 3);
  };
  if (world().is_driver()) {
    give();
    take();
  } else {
    take();
    give();
  }
  EXPECT_TRUE(same_bytes(large, marked(previous, {300, 1000})));
  EXPECT_TRUE(same_bytes(small, marked(previous, {3}, at::kBFloat16)));
}

TEST_F(GpuCommunicatorTest, GroupsCarryTensorsOfTheGpuToo) {
  const auto group = world().split(world().rank() % 2);
  const at::Tensor all = group->all_gather(marked(world().rank(), {2}));
  for (int r = 0; r < group->world_size(); ++r)
    EXPECT_TRUE(same_bytes(all[r], marked(group->world_rank(r), {2})));
  // The whole goes on beside its groups.
  EXPECT_EQ(world().all_gather(marked(world().rank(), {1})).size(0), world().world_size());
  group->close();
}

TEST_F(GpuCommunicatorTest, PhasesTakeTurns) {
  for (Communicator* phase : {&test::ranks().world(), &test::ranks().text(),
                              &test::ranks().decoder(), &test::ranks().world()}) {
    at::Tensor tensor = marked(phase->rank(), {4});
    phase->broadcast(tensor, last_rank());
    EXPECT_TRUE(same_bytes(tensor, marked(last_rank(), {4})));
  }
}

// Every rank's exchange through `transport` against that through shared memory of the host.
void compare_exchanges(ExchangeTransport transport, at::Device gpu) {
  const int n = world().world_size();
  const int64_t width = 24 * n;
  HeadExchangeOptions options{.heads = n,
                              .max_tokens = 64,
                              .max_batch = 2,
                              .token_bytes = 3 * width * 4,
                              .max_gather_bytes = 1 << 20,
                              .timeout_s = 60};
  const auto host = make_head_exchange(world(), options);
  options.device = gpu;
  options.transport = transport;
  const auto device = make_head_exchange(world(), options);
  at::manual_seed(world().rank());
  for (const int64_t batch : {1, 2}) {
    for (const int64_t tokens : {1, 7, 8, 61}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        host->set_token_count(tokens, batch);
        device->set_token_count(tokens, batch);
        std::vector<at::Tensor> own, own_on_gpu;
        for (int i = 0; i < 3; ++i) {
          own.push_back(at::randn({batch, host->local_tokens(), width}).to(dtype));
          own_on_gpu.push_back(own.back().to(gpu));
        }
        const auto expected = host->exchange(own);
        const auto actual = device->exchange(own_on_gpu);
        ASSERT_EQ(actual.size(), 3U);
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bytes(actual[i], expected[i])) << tokens;
        EXPECT_TRUE(same_bytes(device->exchange_back(actual[1]), host->exchange_back(expected[1])));
        const at::Tensor heads = at::randn({batch, 5, 3}).to(dtype);
        EXPECT_TRUE(
            same_bytes(device->all_gather_heads(heads.to(gpu)), host->all_gather_heads(heads)));
        // A step of GPUs has an even number of calls.
        const std::array both = {heads, at::randn({batch, 2, 5}).to(dtype)};
        const auto all = host->all_gather_heads(both);
        const std::array both_on_gpu = {both[0].to(gpu), both[1].to(gpu)};
        const auto all_on_gpu = device->all_gather_heads(both_on_gpu);
        for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bytes(all_on_gpu[i], all[i])) << tokens;
      }
    }
  }
  EXPECT_GT(device->stats().calls, 0);
  device->close();
  host->close();
}

TEST_F(GpuCommunicatorTest, HeadsGoThroughNcclAsThroughTheHost) {
  FLOTILLA_NEEDS_RANKS(2);
  if (!test::on_nccl()) GTEST_SKIP() << "NCCL needs a GPU for each rank";
  compare_exchanges(ExchangeTransport::nccl, gpu_);
}

TEST_F(GpuCommunicatorTest, HeadsGoThroughPeersMemoryAsThroughTheHost) {
  FLOTILLA_NEEDS_RANKS(2);
  compare_exchanges(ExchangeTransport::peer, gpu_);
}

TEST_F(GpuCommunicatorTest, NcclIsRefusedForHeadsWhereRanksShareAGpu) {
  FLOTILLA_NEEDS_RANKS(2);
  if (test::on_nccl()) GTEST_SKIP() << "each rank has a GPU";
  try {
    make_head_exchange(world(), {.device = gpu_,
                                 .transport = ExchangeTransport::nccl,
                                 .heads = world().world_size(),
                                 .max_tokens = 8,
                                 .token_bytes = 64});
    ADD_FAILURE() << "accepted";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::machine);
    EXPECT_THAT(error.what(), HasSubstr("does not serve ranks that share a GPU"));
  }
}

}  // namespace
}  // namespace flotilla::comm
