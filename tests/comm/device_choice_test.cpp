// Which GPU a rank takes, with made-up machines.
#include "comm/device_choice.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace flotilla::comm {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;

gpu::Gpu gpu_named(const std::string& letter) {
  return {"GPU-" + letter, "0000:" + letter + ":00.0", "Made-up 90", 80 * kGiB};
}

// "ab": the GPUs a and b, in this order.
RankFacts sees(const std::string& letters, std::optional<std::string> filter = {}) {
  RankFacts facts{"node1", 4711, "0-3,8", std::move(filter), {}};
  for (const char letter : letters) facts.gpus.push_back(gpu_named(std::string(1, letter)));
  return facts;
}

std::string refusal(const std::vector<RankFacts>& ranks, bool allow_shared = false) {
  try {
    choose_gpus(ranks, allow_shared);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::machine);
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

std::vector<int> choice(const std::vector<RankFacts>& ranks, bool allow_shared = false) {
  return choose_gpus(ranks, allow_shared);
}

TEST(DeviceChoiceTest, AllGpusShownToAllRanksAreTakenInOrder) {
  EXPECT_THAT(choice({sees("abcd"), sees("abcd"), sees("abcd")}), ElementsAre(0, 1, 2));
}

TEST(DeviceChoiceTest, TheOnlyGpuThatARankSeesIsNumberZero) {
  EXPECT_THAT(choice({sees("a", "0"), sees("b", "1"), sees("c", "GPU-c")}), ElementsAre(0, 0, 0));
}

TEST(DeviceChoiceTest, ListsOfItsOwnForEachRank) {
  EXPECT_THAT(choice({sees("ab"), sees("cd")}), ElementsAre(0, 1));
  // The same GPUs in another order: rank 1's first choice is rank 0's already.
  EXPECT_THAT(choice({sees("ab"), sees("ba")}), ElementsAre(0, 0));
  EXPECT_THAT(choice({sees("ab"), sees("bca"), sees("abc")}), ElementsAre(0, 1, 1));
}

TEST(DeviceChoiceTest, TwoRanksOnOneGpuAreRefusedWithTheTable) {
  const std::string text = refusal({sees("a"), sees("a")});
  EXPECT_THAT(text, AllOf(HasSubstr("ranks 0 and 1 would share one GPU"), HasSubstr("2 ranks"),
                          HasSubstr("use at most 1 rank,"), HasSubstr("allow_shared_device")));
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0: node1, gpu 0 of 1, GPU-a, 0000:a:00.0, Made-up 90"),
                          HasSubstr("rank 1: node1"), HasSubstr("cores 0-3,8")));
  EXPECT_THAT(choice({sees("a"), sees("a")}, true), ElementsAre(0, 0));
}

TEST(DeviceChoiceTest, MoreRanksThanGpusNamesWhatWouldFit) {
  EXPECT_THAT(refusal({sees("ab"), sees("ab"), sees("ab")}),
              AllOf(HasSubstr("3 ranks and 2 GPUs"), HasSubstr("use at most 2 ranks")));
  EXPECT_THAT(choice({sees("ab"), sees("ab"), sees("ab")}, true), ElementsAre(0, 1, 0));
}

TEST(DeviceChoiceTest, GpusThatALauncherHidesAreExplained) {
  // Two ranks were given the same GPU though the machine has enough.
  EXPECT_THAT(refusal({sees("ab"), sees("c", "2"), sees("c", "2")}),
              AllOf(HasSubstr("3 GPUs are visible in all, but not to these ranks"),
                    HasSubstr("names 1 GPU by index"), HasSubstr("--gpu-bind=none")));
}

TEST(DeviceChoiceTest, ARankWithoutGpuIsNamed) {
  EXPECT_THAT(refusal({sees("a"), sees("", "")}),
              AllOf(HasSubstr("no GPU to rank 1"), HasSubstr("is empty, which hides all GPUs")));
  EXPECT_THAT(refusal({sees(""), sees("")}),
              AllOf(HasSubstr("no CUDA device here"), Not(HasSubstr("CUDA_VISIBLE"))));
  EXPECT_THAT(refusal({sees("", "-1")}, true), HasSubstr("is \"-1\" and hides all GPUs"));
  EXPECT_TRUE(all_see_gpus(std::vector{sees("a"), sees("b")}));
  EXPECT_FALSE(all_see_gpus(std::vector{sees("a"), sees("")}));
}

TEST(DeviceChoiceTest, EveryFormOfTheFilterIsExplained) {
  const std::vector<std::pair<std::optional<std::string>, std::string>> cases = {
      {std::nullopt, "is not set"},
      {"", "is empty, which hides all GPUs"},
      {"-1", "is \"-1\" and hides all GPUs"},
      {"NoDevFiles", "is \"NoDevFiles\" and hides all GPUs"},
      {"3", "is \"3\" and names 1 GPU by index"},
      {"0, 2,1", "is \"0, 2,1\" and names 3 GPUs by index"},
      {"0,-1,1", "is \"0,-1,1\" and names 1 GPU by index"},
      {"GPU-5a1c,GPU-77", "is \"GPU-5a1c,GPU-77\" and names 2 GPUs by UUID"},
      {"MIG-5a1c", "is \"MIG-5a1c\" and names 1 MIG instance by UUID"},
  };
  for (const auto& [filter, words] : cases) EXPECT_EQ(describe_cuda_filter(filter), words);
}

TEST(DeviceChoiceTest, NcclServesRanksWithABusOfTheirOwn) {
  EXPECT_TRUE(nccl_serves(std::vector{gpu_named("a"), gpu_named("b")}));
  EXPECT_FALSE(nccl_serves(std::vector{gpu_named("a"), gpu_named("b"), gpu_named("a")}));
  // MIG instances: UUIDs of their own on one bus.
  std::vector instances{gpu_named("a"), gpu_named("a")};
  instances[1].uuid = "MIG-1";
  EXPECT_FALSE(nccl_serves(instances));
}

TEST(DeviceChoiceTest, MemoryIsThatOfTheSmallestShare) {
  std::vector gpus{gpu_named("a"), gpu_named("b"), gpu_named("b")};
  EXPECT_EQ(memory_bytes_per_rank(gpus), 40 * kGiB);
  gpus[0].memory_bytes = 16 * kGiB;
  EXPECT_EQ(memory_bytes_per_rank(gpus), 16 * kGiB);
}

TEST(DeviceChoiceTest, FactsSurviveTheWayToAnotherRank) {
  for (const RankFacts& facts : {sees(""), sees("", ""), sees("abc"), sees("ab", "1,GPU-2")})
    EXPECT_EQ(RankFacts::unpack(facts.pack()), facts);
}

TEST(DeviceChoiceTest, TheTableTellsHowPeersAreReached) {
  using gpu::PeerLink;
  const std::vector ranks{sees("ab"), sees("ab"), sees("c")};
  const auto table = device_table(ranks, std::vector{0, 1, 0},
                                  {{PeerLink::same_device, PeerLink::nvlink, PeerLink::hidden},
                                   {PeerLink::pcie, PeerLink::same_device, PeerLink::none},
                                   {PeerLink::none, PeerLink::none, PeerLink::same_device}});
  ASSERT_EQ(table.size(), 3u);
  EXPECT_THAT(table[0], HasSubstr("; to rank 1 NVLink, 2 hidden"));
  EXPECT_THAT(table[1],
              AllOf(HasSubstr("gpu 1 of 2, GPU-b"), HasSubstr("; to rank 0 PCIe, 2 none")));
  EXPECT_EQ(index_of(ranks[0], "GPU-b"), 1);
  EXPECT_EQ(index_of(ranks[2], "GPU-b"), std::nullopt);
}

}  // namespace
}  // namespace flotilla::comm
