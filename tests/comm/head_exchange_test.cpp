// The exchange of tokens for heads: where each value goes, round trips to the byte, ranks that are
// ahead or late, and sizes that are refused.
#include "comm/head_exchange.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "comm/agreement.h"
#include "comm/exchange_layout.h"
#include "comm/peer_buffers.h"
#include "support/mpi_main.h"

namespace flotilla::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Communicator& world() { return test::ranks().transformer(); }
int world_size() { return world().world_size(); }

struct Sizes {
  int64_t batch;
  int64_t tokens;
  int64_t heads;
  int64_t head_dim;
  int64_t width() const { return heads * head_dim; }
};

std::unique_ptr<HeadExchange> exchange_for(int64_t max_tokens, int64_t width, int64_t batch = 1,
                                           double timeout_s = 60) {
  return make_head_exchange(world(), {.heads = world_size(),
                                      .max_tokens = max_tokens,
                                      .max_batch = batch,
                                      .token_bytes = 3 * width * 8,
                                      .max_gather_bytes = 1 << 20,
                                      .timeout_s = timeout_s,
                                      .first_timeout_s = timeout_s});
}

// [B, T, H*D]: a value that tells sample, token, head, place in the head, and which of q, k, v.
at::Tensor encoded(const Sizes& sizes, int tensor) {
  const auto axis = [](int64_t size, int64_t step) { return at::arange(size, at::kLong) * step; };
  return (axis(sizes.batch, 100'000'000).view({-1, 1, 1}) +
          axis(sizes.tokens, 100'000).view({1, -1, 1}) +
          (axis(sizes.heads, 100).view({-1, 1}) + axis(sizes.head_dim, 1)).view({1, 1, -1})) *
             4 +
         tensor;
}

// This rank's [B, S, W] of a whole [B, T, W]; zeros where there is padding.
at::Tensor own_tokens(const at::Tensor& whole) {
  const TokenShards shards{whole.size(1), world_size()};
  at::Tensor own =
      at::zeros({whole.size(0), shards.padded_local(), whole.size(2)}, whole.options());
  own.narrow(1, 0, shards.count(world().rank()))
      .copy_(whole.narrow(1, shards.begin(world().rank()), shards.count(world().rank())));
  return own;
}

at::Tensor own_heads(const at::Tensor& whole) {
  const int64_t width = whole.size(2) / world_size();
  return whole.narrow(2, world().rank() * width, width);
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

TEST(HeadExchangeTest, ValuesArriveAtTheirTokenAndHead) {
  for (const int64_t tokens : {1, 2, 7, 8, 24, 61}) {
    const Sizes sizes{2, tokens, 3 * world_size(), 5};
    const auto exchange = exchange_for(tokens, sizes.width(), sizes.batch);
    exchange->set_token_count(tokens, sizes.batch);
    const std::vector<at::Tensor> whole = {encoded(sizes, 0), encoded(sizes, 1), encoded(sizes, 2)};
    std::vector<at::Tensor> own;
    for (const auto& tensor : whole) own.push_back(own_tokens(tensor));
    const auto heads = exchange->exchange(own);
    ASSERT_EQ(heads.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::equal(heads[i], own_heads(whole[i]))) << tokens << " tokens, tensor " << i;
    }
    const at::Tensor back = exchange->exchange_back(heads[2]);
    EXPECT_TRUE(at::equal(back, own[2])) << tokens << " tokens";
  }
}

TEST(HeadExchangeTest, TwoTensorsOfOtherWidthsGoInOneCall) {
  const Sizes wide{1, 13, world_size(), 4}, narrow{1, 13, world_size(), 2};
  const auto exchange = exchange_for(13, wide.width());
  exchange->set_token_count(13, 1);
  const at::Tensor k = encoded(wide, 1), v = encoded(narrow, 2);
  const auto heads = exchange->exchange(std::vector<at::Tensor>{own_tokens(k), own_tokens(v)});
  EXPECT_TRUE(at::equal(heads[0], own_heads(k)));
  EXPECT_TRUE(at::equal(heads[1], own_heads(v)));
}

TEST(HeadExchangeTest, GatheredHeadsAreWholeOnEveryRank) {
  for (const int64_t tokens : {1, 6, 50}) {
    const Sizes sizes{2, tokens, 2 * world_size(), 3};
    const auto exchange = exchange_for(4, sizes.width(), sizes.batch);
    exchange->set_token_count(4, sizes.batch);
    const at::Tensor whole = encoded(sizes, 1).to(at::kFloat);
    EXPECT_TRUE(at::equal(exchange->all_gather_heads(own_heads(whole)), whole));
  }
}

TEST(HeadExchangeTest, TensorsOfOtherSizesAreGatheredInOneCall) {
  const Sizes wide{2, 7, 2 * world_size(), 4}, narrow{2, 3, world_size(), 1};
  const auto exchange = exchange_for(7, wide.width(), 2);
  exchange->set_token_count(7, 2);
  std::vector<at::Tensor> whole, own;
  for (int i = 0; i < 4; ++i) {
    whole.push_back(encoded(i < 2 ? wide : narrow, i));
    own.push_back(own_heads(whole.back()));
  }
  const auto gathered = exchange->all_gather_heads(own);
  ASSERT_EQ(gathered.size(), 4U);
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(gathered[i], whole[i])) << i;
}

TEST(HeadExchangeTest, TokenCountsChangeFromStepToStep) {
  const auto exchange = exchange_for(64, 4 * world_size());
  for (const int64_t tokens : {64, 3, 40, 1, 64}) {
    exchange->set_token_count(tokens, 1);
    EXPECT_EQ(exchange->local_tokens(), (tokens + world_size() - 1) / world_size());
    const at::Tensor whole = encoded({1, tokens, world_size(), 4}, 0);
    const auto heads = exchange->exchange(std::vector<at::Tensor>{own_tokens(whole)});
    EXPECT_TRUE(at::equal(heads[0], own_heads(whole)));
  }
}

// 300 cases on each of the worlds that CTest runs: more than 1,500 in all.
TEST(HeadExchangeTest, RoundTripsAreExactForRandomSizes) {
  constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kByte};
  constexpr int64_t kMaxTokens = 97, kMaxWidth = 6 * 8 * 16, kMaxBatch = 3;
  std::mt19937 random(2026);  // the same on all ranks
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const auto exchange = exchange_for(kMaxTokens, kMaxWidth, kMaxBatch);
  for (int trial = 0; trial < 300; ++trial) {
    const Sizes sizes{pick(1, kMaxBatch), pick(1, kMaxTokens), world_size() * pick(1, 6),
                      pick(1, 16)};
    const auto dtype = kTypes[static_cast<size_t>(pick(0, kTypes.size() - 1))];
    const auto element = static_cast<int64_t>(c10::elementSize(dtype));
    // Random bytes: also NaNs and negative zeros must come back as they are.
    at::manual_seed(trial);
    const at::Tensor whole =
        at::randint(0, 256, {sizes.batch, sizes.tokens, sizes.width() * element}, at::kByte)
            .view(dtype);
    const at::Tensor own = own_tokens(whole);
    exchange->set_token_count(sizes.tokens, sizes.batch);
    const std::vector<at::Tensor> qkv(static_cast<size_t>(pick(1, 3)), own);
    const auto heads = exchange->exchange(qkv);
    for (const auto& tensor : heads) ASSERT_TRUE(same_bytes(tensor, own_heads(whole)));
    ASSERT_TRUE(same_bytes(exchange->exchange_back(heads.back()), own))
        << "trial " << trial << ": " << sizes.batch << " x " << sizes.tokens << " x " << sizes.heads
        << " x " << sizes.head_dim << " " << dtype;
  }
}

TEST(HeadExchangeTest, ARankThatIsAheadOverrunsNobody) {
  FLOTILLA_NEEDS_RANKS(2);
  const Sizes sizes{1, 33, world_size(), 64};
  const auto exchange = exchange_for(sizes.tokens, sizes.width());
  exchange->set_token_count(sizes.tokens, 1);
  std::mt19937 random(world().rank());
  const at::Tensor whole = encoded(sizes, 0);
  for (int round = 0; round < 200; ++round) {
    const auto heads = exchange->exchange(std::vector<at::Tensor>{own_tokens(whole + 3 * round)});
    // Late in reading and late in sending, while the others may be one call ahead.
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    ASSERT_TRUE(at::equal(heads[0], own_heads(whole + 3 * round))) << "round " << round;
    const at::Tensor back = exchange->exchange_back(heads[0]);
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    ASSERT_TRUE(at::equal(back, own_tokens(whole + 3 * round))) << "round " << round;
  }
}

TEST(HeadExchangeTest, TwoExchangesDoNotDisturbEachOther) {
  const auto first = exchange_for(20, world_size());
  const auto second = exchange_for(20, world_size());
  first->set_token_count(20, 1);
  second->set_token_count(10, 1);
  const at::Tensor a = encoded({1, 20, world_size(), 1}, 0),
                   b = encoded({1, 10, world_size(), 1}, 1);
  const auto heads_a = first->exchange(std::vector<at::Tensor>{own_tokens(a)});
  const auto heads_b = second->exchange(std::vector<at::Tensor>{own_tokens(b)});
  EXPECT_TRUE(at::equal(heads_a[0], own_heads(a)));
  EXPECT_TRUE(at::equal(heads_b[0], own_heads(b)));
}

TEST(HeadExchangeTest, StatsCountBytesToOthers) {
  const auto exchange = exchange_for(16 * world_size(), 8 * world_size());
  exchange->set_token_count(16 * world_size(), 1);
  const at::Tensor own = at::zeros({1, 16, 8 * world_size()});
  exchange->exchange(std::vector<at::Tensor>{own, own});
  EXPECT_EQ(exchange->stats().bytes, 2 * 16 * 8 * 4 * (world_size() - 1));
  EXPECT_EQ(exchange->stats().calls, world_size() == 1 ? 0 : 1);
  EXPECT_GE(exchange->stats().seconds, exchange->stats().wait_seconds);
}

TEST(HeadExchangeTest, TooManyTokensAreRefusedWordForWord) {
  const auto exchange = exchange_for(32, world_size());
  try {
    exchange->set_token_count(40, 1);
    FAIL() << "not refused";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("Total video token count (40) exceeds attention_manager max_tokens "
                                "(32). Use a smaller resolution or fewer frames."),
                      HasSubstr("sp.max_tokens")));
  }
  exchange->set_token_count(32, 1);  // and the exchange lives on
}

TEST(HeadExchangeTest, HeadsThatDoNotDivideAreRefusedWithTheUsableRanks) {
  const auto refusal = [](int64_t heads, int ranks) -> std::string {
    try {
      check_heads(heads, ranks);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(32, 3),
            "heads (32) must be divisible by world_size (3); use 1, 2, 4 or 8 ranks");
  EXPECT_EQ(refusal(6, 4), "heads (6) must be divisible by world_size (4); use 1, 2, 3 or 6 ranks");
  EXPECT_EQ(refusal(11, 2), "heads (11) must be divisible by world_size (2); use 1 rank");
  EXPECT_EQ(refusal(8, 8), "");
}

TEST(HeadExchangeTest, CountsThatDifferBetweenRanksAreRefused) {
  FLOTILLA_NEEDS_RANKS(2);
  const auto exchange = exchange_for(32, world_size());
  EXPECT_THROW(exchange->set_token_count(8 + world().rank(), 1), AgreedError);
}

TEST(HeadExchangeTest, ALateRankIsNamedAndTheExchangeIsOutOfUse) {
  FLOTILLA_NEEDS_RANKS(2);
  const auto exchange = exchange_for(8, world_size(), 1, /*timeout_s=*/0.2);
  exchange->set_token_count(8, 1);
  const std::vector<at::Tensor> own = {own_tokens(encoded({1, 8, world_size(), 1}, 0))};
  const int late = world_size() - 1;
  if (world().rank() == late) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_NO_THROW(exchange->exchange(own));
  } else {
    for (const std::string& expected :
         {"rank " + std::to_string(late) + " did not come", std::string("out of use")}) {
      try {
        exchange->exchange(own);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::communication);
        EXPECT_THAT(error.what(), HasSubstr(expected));
      }
    }
  }
  world().barrier("end of the test", 60);
}

TEST(PeerBuffersTest, AllRanksSeeOneMemoryWithoutAName) {
  PeerBuffers buffers(world(), 1 << 16);
  buffers.reserve(0, 4096);
  world().barrier("reserved", 60);
  for (int r = 0; r < world_size(); ++r)
    buffers.tensor(r, 8 * world().rank(), {1}, at::kLong).fill_(100 * r + world().rank());
  world().barrier("written", 60);
  const at::Tensor own = buffers.tensor(world().rank(), 0, {world_size()}, at::kLong);
  EXPECT_TRUE(at::equal(own, at::arange(world_size(), at::kLong) + 100 * world().rank()));
  const std::string own_names =
      "flotilla." + std::to_string(getuid()) + "." + std::to_string(getpid());
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    EXPECT_FALSE(entry.path().filename().string().starts_with(own_names)) << entry.path();
  world().barrier("end of the test", 60);
}

TEST(PeerBuffersTest, AViewOutlivesTheBuffers) {
  at::Tensor view;
  {
    PeerBuffers buffers(world(), 4096);
    buffers.reserve(0, 4096);
    view = buffers.tensor(world().rank(), 0, {4}, at::kFloat);
    view.fill_(3);
  }
  EXPECT_EQ(view.sum().item<float>(), 12);
}

TEST(PeerBuffersTest, MoreMemoryThanThereIsIsAnError) {
  const auto capacity = static_cast<int64_t>(std::filesystem::space("/dev/shm").capacity);
  if (capacity == 0) GTEST_SKIP() << "/dev/shm has no limit";
  SharedMemory memory = SharedMemory::create(2 * capacity);
  try {
    memory.reserve(0, 2 * capacity);
    FAIL() << "reserved";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::memory);
    EXPECT_THAT(error.what(), HasSubstr("--shm-size"));
  }
}

}  // namespace
}  // namespace flotilla::comm
