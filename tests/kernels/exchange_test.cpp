// The kernels that write into the buffers of other ranks, all ranks of a world played by one
// process: each has its stream, its buffer and its flags. Data placed against slices of the whole,
// norm and rotation against their ATen twins, and a rank that does not come.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "comm/exchange_layout.h"
#include "gpu/cuda_check.h"
#include "gpu/device_buffer.h"
#include "kernels/all_to_all.h"
#include "kernels/qk_norm_rope.h"
#include "ops/attention.h"
#include "support/compare.h"
#include "support/device.h"

namespace flotilla {
namespace {

using comm::TokenShards;
using kernels::AllToAllArgs;
using kernels::ExchangePeers;

constexpr int64_t kSlot = 4096;

struct Sizes {
  int ranks;
  int64_t batch, tokens, heads, head_dim;
  int64_t width() const { return heads * head_dim; }
};

class World {
 public:
  World(int ranks, int64_t slot_bytes)
      : progress_(at::Device(at::kCUDA, 0), 4096 * ranks), ranks_(ranks) {
    for (int r = 0; r < ranks; ++r) {
      buffers_.emplace_back(at::Device(at::kCUDA, 0), kSlot + slot_bytes);
      streams_.push_back(c10::cuda::getStreamFromPool(false, 0));
    }
    void* memory = nullptr;
    gpu::check_cuda(cudaHostAlloc(&memory, sizeof(*faults_) * kernels::kMaxRanks, 0), "alloc");
    std::memset(memory, 0, sizeof(*faults_) * kernels::kMaxRanks);
    faults_ = static_cast<kernels::ExchangeFault*>(memory);
  }
  ~World() { static_cast<void>(cudaFreeHost(faults_)); }

  ExchangePeers peers(int rank, double timeout_s = 20) const {
    ExchangePeers peers;
    peers.rank = rank;
    peers.ranks = ranks_;
    for (int r = 0; r < ranks_; ++r) {
      peers.slot[r] = buffers_[static_cast<size_t>(r)].data() + kSlot;
      peers.own_flag[r] = flags(r) + rank * kernels::kFlagStride;
    }
    peers.peer_flags = flags(rank);
    peers.progress =
        reinterpret_cast<kernels::ExchangeProgress*>(progress_.data() + int64_t{4096} * rank);
    peers.fault = faults_ + rank;
    peers.timeout_ns = static_cast<uint64_t>(timeout_s * 1e9);
    return peers;
  }
  c10::cuda::CUDAStream stream(int rank) const { return streams_[static_cast<size_t>(rank)]; }
  const kernels::ExchangeFault& fault(int rank) const { return faults_[rank]; }
  // What the rank's slot holds.
  at::Tensor received(int rank, at::IntArrayRef sizes, at::ScalarType dtype,
                      int64_t offset = 0) const {
    gpu::check_cuda(cudaDeviceSynchronize(), "synchronize");
    return gpu::device_view(buffers_[static_cast<size_t>(rank)].data() + kSlot + offset, sizes,
                            dtype, at::Device(at::kCUDA, 0))
        .clone();
  }

 private:
  uint64_t* flags(int rank) const {
    return reinterpret_cast<uint64_t*>(buffers_[static_cast<size_t>(rank)].data());
  }

  std::vector<gpu::DeviceBuffer> buffers_;
  gpu::DeviceBuffer progress_;
  std::vector<c10::cuda::CUDAStream> streams_;
  kernels::ExchangeFault* faults_ = nullptr;
  int ranks_;
};

// [B, S, W] of one rank, zeros behind the last token.
at::Tensor shard(const at::Tensor& whole, const TokenShards& shards, int64_t rank) {
  at::Tensor own =
      at::zeros({whole.size(0), shards.padded_local(), whole.size(2)}, whole.options());
  own.narrow(1, 0, shards.count(rank))
      .copy_(whole.narrow(1, shards.begin(rank), shards.count(rank)));
  return own;
}

at::Tensor numbered(const Sizes& sizes, at::ScalarType dtype) {
  const int64_t count = sizes.batch * sizes.tokens * sizes.width();
  return at::arange(count, at::TensorOptions(at::kCUDA).dtype(at::kLong))
      .remainder(251)
      .to(dtype)
      .view({sizes.batch, sizes.tokens, sizes.width()});
}

void tokens_to_heads_and_back(const Sizes& sizes, at::ScalarType dtype) {
  const at::Tensor whole = numbered(sizes, dtype);
  const TokenShards shards{sizes.tokens, sizes.ranks};
  const int64_t token_bytes = sizes.width() * whole.element_size();
  World there(sizes.ranks, sizes.batch * shards.padded_local() * token_bytes * 2);
  World back(sizes.ranks, sizes.batch * shards.padded_local() * token_bytes * 2);
  std::vector<at::Tensor> own;
  for (int r = 0; r < sizes.ranks; ++r) own.push_back(shard(whole, shards, r));
  gpu::check_cuda(cudaDeviceSynchronize(), "synchronize");
  for (int r = 0; r < sizes.ranks; ++r) {
    AllToAllArgs args;
    args.peers = there.peers(r);
    args.parts = 1;
    args.blocks = 3;  // does not divide the ranks, and leaves room for the others
    args.part[0].from = own[static_cast<size_t>(r)].const_data_ptr();
    for (int p = 0; p < sizes.ranks; ++p)
      args.part[0].to_rank[p] = tokens_to_heads(shards, sizes.batch, token_bytes, r, p);
    gpu::check_cuda(launch_all_to_all(args, there.stream(r)), "launch");
  }
  const int64_t width = sizes.width() / sizes.ranks;
  std::vector<at::Tensor> heads;
  for (int r = 0; r < sizes.ranks; ++r) {
    heads.push_back(there.received(r, {sizes.batch, sizes.tokens, width}, dtype));
    EXPECT_TRUE(at::equal(heads.back(), whole.narrow(2, r * width, width))) << "rank " << r;
    EXPECT_EQ(there.fault(r).raised, 0U);
  }
  for (int r = 0; r < sizes.ranks; ++r) {
    AllToAllArgs args;
    args.peers = back.peers(r);
    args.parts = 1;
    args.blocks = 5;
    args.part[0].from = heads[static_cast<size_t>(r)].const_data_ptr();
    for (int p = 0; p < sizes.ranks; ++p)
      args.part[0].to_rank[p] = heads_to_tokens(shards, sizes.batch, token_bytes, r, p);
    const int64_t filled = shards.count(r);
    args.cleared = {sizes.batch,
                    shards.padded_local() - filled,
                    token_bytes,
                    {},
                    {filled * token_bytes, shards.padded_local() * token_bytes, token_bytes}};
    gpu::check_cuda(launch_all_to_all(args, back.stream(r)), "launch");
  }
  for (int r = 0; r < sizes.ranks; ++r) {
    const at::Tensor tokens =
        back.received(r, {sizes.batch, shards.padded_local(), sizes.width()}, dtype);
    EXPECT_TRUE(at::equal(tokens, own[static_cast<size_t>(r)])) << "rank " << r;
  }
}

TEST(AllToAllKernelTest, BackInvertsThereForRandomSizes) {
  FLOTILLA_REQUIRE_GPU();
  std::mt19937 random(5);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const at::ScalarType dtypes[] = {at::kFloat, at::kBFloat16, at::kByte};
  for (int i = 0; i < 150; ++i) {
    const int ranks = static_cast<int>(draw(1, 8));
    const Sizes sizes{ranks, draw(1, 3), draw(1, 200), ranks * draw(1, 3), draw(1, 40)};
    SCOPED_TRACE(fmt::format("case {}: {} ranks, B {} T {} H {} D {}", i, ranks, sizes.batch,
                             sizes.tokens, sizes.heads, sizes.head_dim));
    tokens_to_heads_and_back(sizes, dtypes[i % 3]);
    if (HasFailure()) return;
  }
}

TEST(AllToAllKernelTest, ModelSizesGoThere) {
  FLOTILLA_REQUIRE_GPU();
  tokens_to_heads_and_back({8, 1, 6145, 32, 128}, at::kBFloat16);
}

TEST(AllToAllKernelTest, RankThatDoesNotComeIsRecorded) {
  FLOTILLA_REQUIRE_GPU();
  World world(3, 4096);
  AllToAllArgs args;
  for (const int r : {0, 2}) {
    args.peers = world.peers(r, 0.2);
    gpu::check_cuda(launch_all_to_all(args, world.stream(r)), "launch");
  }
  gpu::check_cuda(cudaDeviceSynchronize(), "synchronize");
  EXPECT_EQ(world.fault(0).raised, 1U);
  EXPECT_EQ(world.fault(0).missing, 0b010U);
  EXPECT_EQ(world.fault(2).missing, 0b010U);
  EXPECT_EQ(world.fault(0).seen[2], 1U);
  EXPECT_EQ(world.fault(1).raised, 0U);
}

ops::AttentionCall random_call(const Sizes& sizes, at::ScalarType dtype) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(dtype);
  const auto tokens = [&] {
    return at::randn({sizes.batch, sizes.tokens, sizes.width()}, options);
  };
  ops::AttentionCall call;
  call.q = tokens();
  call.k = tokens();
  call.v = tokens();
  call.q_norm = at::rand({sizes.width()}, options) + 0.5;
  call.k_norm = at::rand({sizes.width()}, options) + 0.5;
  call.heads = sizes.heads;
  const at::Tensor angles =
      at::rand({1, sizes.heads, sizes.tokens, sizes.head_dim / 2}, options.dtype(at::kFloat)) * 6;
  call.q_rope = {angles.cos().to(dtype), angles.sin().to(dtype), ops::RopeType::split};
  call.k_rope = call.q_rope;
  return call;
}

// The same in float64, from the values that the kernel reads.
ops::AttentionCall exact(ops::AttentionCall call) {
  for (at::Tensor* tensor :
       {&call.q, &call.k, &call.v, &call.q_norm, &call.k_norm, &call.q_rope.cos, &call.q_rope.sin,
        &call.k_rope.cos, &call.k_rope.sin})
    *tensor = tensor->to(at::kDouble);
  return call;
}

at::Tensor in_token_layout(const at::Tensor& heads) { return heads.transpose(1, 2).flatten(-2); }

// One rounding to the dtype of values up to about 8.
double bound(at::ScalarType dtype) { return dtype == at::kFloat ? 5e-6 : 8e-3; }

void norm_rope_send(const Sizes& sizes, at::ScalarType dtype) {
  const ops::AttentionCall call = random_call(sizes, dtype);
  const ops::AttentionCall twin = exact(call);
  const at::Tensor expected[] = {in_token_layout(ops::query_heads(twin)),
                                 in_token_layout(ops::key_heads(twin)), twin.v};
  const TokenShards shards{sizes.tokens, sizes.ranks};
  const int64_t token_bytes = sizes.width() * call.q.element_size();
  const int64_t part_bytes = (sizes.batch * shards.padded_local() * token_bytes + 255) / 256 * 256;
  World world(sizes.ranks, 3 * part_bytes);
  std::vector<at::Tensor> alive;
  std::vector<kernels::QkNormRopeArgs> calls(static_cast<size_t>(sizes.ranks));
  for (int r = 0; r < sizes.ranks; ++r) {
    kernels::QkNormRopeArgs& args = calls[static_cast<size_t>(r)];
    args.parts = 3;
    args.batches = sizes.batch;
    args.tokens = shards.padded_local();
    args.live_tokens = shards.count(r);
    args.heads = sizes.heads;
    args.head_dim = sizes.head_dim;
    args.eps = 1e-6F;
    args.dtype = dtype == at::kFloat ? kernels::DataType::float32 : kernels::DataType::bfloat16;
    const auto table = [&](const at::Tensor& whole) {  // [1, H, T, D/2] -> own tokens
      at::Tensor own =
          at::zeros({1, sizes.heads, args.tokens, sizes.head_dim / 2}, whole.options());
      own.narrow(2, 0, args.live_tokens).copy_(whole.narrow(2, shards.begin(r), args.live_tokens));
      alive.push_back(own);
      return own.const_data_ptr();
    };
    args.cos = table(call.q_rope.cos);
    args.sin = table(call.q_rope.sin);
    const at::Tensor* from[] = {&call.q, &call.k, &call.v};
    const at::Tensor* weights[] = {&call.q_norm, &call.k_norm, nullptr};
    for (int p = 0; p < 3; ++p) {
      alive.push_back(shard(*from[p], shards, r));
      args.part[p].from = alive.back().const_data_ptr();
      if (weights[p] != nullptr) {
        args.part[p].weight = weights[p]->const_data_ptr();
        args.part[p].rotated = true;
      }
      for (int peer = 0; peer < sizes.ranks; ++peer) {
        args.part[p].to_rank[peer] = tokens_to_heads(shards, sizes.batch, token_bytes, r, peer).to;
        args.part[p].to_rank[peer].offset += p * part_bytes;
      }
    }
    ASSERT_TRUE(can_qk_norm_rope(args));
  }
  // A kernel ends when those of all ranks have written: nothing may wait between the launches.
  gpu::check_cuda(cudaDeviceSynchronize(), "synchronize");
  for (int r = 0; r < sizes.ranks; ++r) {
    gpu::check_cuda(
        launch_qk_norm_rope_send(calls[static_cast<size_t>(r)], world.peers(r), world.stream(r)),
        "launch");
  }
  const int64_t width = sizes.width() / sizes.ranks;
  for (int r = 0; r < sizes.ranks; ++r) {
    for (int p = 0; p < 3; ++p) {
      const at::Tensor actual =
          world.received(r, {sizes.batch, sizes.tokens, width}, dtype, p * part_bytes);
      const at::Tensor own = expected[p].narrow(2, r * width, width);
      EXPECT_TRUE(test::all_close(actual, own, bound(dtype), bound(dtype)))
          << "rank " << r << " part " << p;
    }
  }
}

TEST(QkNormRopeTest, SendEqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(3);
  // The model's heads, padded tokens, narrow heads that take the slow path, several samples.
  constexpr Sizes kSizes[] = {
      {8, 1, 61, 32, 128}, {4, 2, 30, 32, 64}, {2, 2, 9, 8, 6}, {3, 1, 2, 6, 16}, {1, 1, 5, 4, 8}};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Sizes& sizes : kSizes) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", sizes.ranks, c10::toString(dtype)));
      norm_rope_send(sizes, dtype);
    }
  }
}

TEST(QkNormRopeTest, LocalKernelEqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(4);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Sizes& sizes : {Sizes{1, 1, 300, 32, 128}, Sizes{1, 2, 7, 32, 64}}) {
      const ops::AttentionCall call = random_call(sizes, dtype);
      const at::Tensor out = at::empty_like(call.q);
      kernels::QkNormRopeArgs args;
      args.parts = 1;
      args.part[0] = {.from = call.q.const_data_ptr(),
                      .weight = call.q_norm.const_data_ptr(),
                      .rotated = true,
                      .out = out.mutable_data_ptr(),
                      .to_rank = {}};
      args.cos = call.q_rope.cos.const_data_ptr();
      args.sin = call.q_rope.sin.const_data_ptr();
      args.batches = sizes.batch;
      args.tokens = args.live_tokens = sizes.tokens;
      args.heads = sizes.heads;
      args.head_dim = sizes.head_dim;
      args.eps = 1e-6F;
      args.dtype = dtype == at::kFloat ? kernels::DataType::float32 : kernels::DataType::bfloat16;
      gpu::check_cuda(launch_qk_norm_rope(args, c10::cuda::getCurrentCUDAStream()), "launch");
      EXPECT_TRUE(test::all_close(out, in_token_layout(ops::query_heads(exact(call))), bound(dtype),
                                  bound(dtype)));
    }
  }
}

}  // namespace
}  // namespace flotilla
