// Collective calls, agreement and deadlines, on any number of ranks.
#include "comm/communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <new>
#include <thread>

#include "comm/agreement.h"
#include "support/mpi_main.h"

namespace flotilla::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Communicator& world() { return test::ranks().world(); }
int last_rank() { return world().world_size() - 1; }

// A value per rank and place that no other rank has.
at::Tensor marked(int rank, at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return (at::arange(count, at::kLong).view(shape) + 100 * rank).to(dtype);
}

TEST(CommunicatorTest, FactsNameEachRank) {
  ASSERT_EQ(static_cast<int>(test::ranks().facts().size()), world().world_size());
  for (const auto& facts : test::ranks().facts()) {
    EXPECT_GT(facts.pid, 0);
    EXPECT_FALSE(facts.cores.empty());
    EXPECT_EQ(facts.host, test::ranks().facts().front().host);
  }
}

TEST(CommunicatorTest, BroadcastSendsTheRootsValues) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
    for (int root = 0; root <= last_rank(); ++root) {
      at::Tensor tensor = marked(world().rank(), {3, 5}, dtype);
      world().broadcast(tensor, root);
      EXPECT_TRUE(at::equal(tensor, marked(root, {3, 5}, dtype)));
    }
  }
}

TEST(CommunicatorTest, BroadcastFillsTensorsThatAreNotContiguous) {
  at::Tensor whole = at::zeros({4, 6});
  at::Tensor part = whole.narrow(1, 1, 3);
  if (world().is_driver()) part.copy_(marked(0, {4, 3}));
  world().broadcast(part, 0);
  EXPECT_TRUE(at::equal(whole.narrow(1, 1, 3), marked(0, {4, 3})));
  EXPECT_EQ(whole.narrow(1, 4, 2).abs().sum().item<float>(), 0);
}

TEST(CommunicatorTest, BroadcastSendsTextsOfAnyLength) {
  for (const std::string& text : {std::string(), std::string("x\0y", 3), std::string(100000, 'z')})
    EXPECT_EQ(world().broadcast(world().rank() == last_rank() ? text : "other", last_rank()), text);
}

TEST(CommunicatorTest, AllGatherKeepsTheOrderOfTheRanks) {
  const at::Tensor all = world().all_gather(marked(world().rank(), {2, 3}, at::kBFloat16));
  ASSERT_EQ(all.size(0), world().world_size());
  for (int r = 0; r <= last_rank(); ++r)
    EXPECT_TRUE(at::equal(all.select(0, r), marked(r, {2, 3}, at::kBFloat16)));
  EXPECT_EQ(world().all_gather(at::empty({0, 4})).sizes(),
            (std::vector<int64_t>{world().world_size(), 0, 4}));
}

TEST(CommunicatorTest, AllGatherOfTextsAllowsDifferentLengths) {
  const auto texts = world().all_gather(std::string(static_cast<size_t>(world().rank()), 'a'));
  for (size_t r = 0; r < texts.size(); ++r) EXPECT_EQ(texts[r], std::string(r, 'a'));
}

// Ranges of different lengths, the driver's empty, with a byte between them that belongs to nobody.
std::vector<ByteRange> uneven_ranges(int64_t unit) {
  std::vector<ByteRange> ranges;
  int64_t at = 3;
  for (int r = 0; r <= last_rank(); ++r) {
    ranges.push_back({at, at + r * unit});
    at = ranges.back().end + 1;
  }
  return ranges;
}

TEST(CommunicatorTest, AllGatherInPlaceTakesRangesOfAnyLength) {
  for (const int64_t unit : {0, 1, 1000, 333333}) {
    const auto ranges = uneven_ranges(unit);
    const int64_t size = ranges.back().end + 5;
    at::Tensor bytes = at::full({size}, 200 + world().rank(), at::kByte);
    at::Tensor expected = bytes.clone();
    const auto mark = [&](const at::Tensor& to, int r) {
      const ByteRange& range = ranges[static_cast<size_t>(r)];
      to.narrow(0, range.begin, range.size())
          .copy_(at::arange(range.size(), at::kLong).add(7 * r).remainder(190));
    };
    mark(bytes, world().rank());
    for (int r = 0; r <= last_rank(); ++r) mark(expected, r);
    const void* memory = bytes.const_data_ptr();
    world().all_gather_in_place(bytes, ranges);
    EXPECT_TRUE(at::equal(bytes, expected)) << unit;
    EXPECT_EQ(bytes.const_data_ptr(), memory);
  }
}

TEST(CommunicatorTest, AllGatherInPlaceCountsInBytesOfAnyType) {
  at::Tensor rows = at::full({world().world_size(), 5}, -1.0, at::kBFloat16);
  rows.select(0, world().rank()).fill_(world().rank());
  std::vector<ByteRange> ranges;
  for (int r = 0; r <= last_rank(); ++r) ranges.push_back({r * 10, r * 10 + 10});
  world().all_gather_in_place(rows, ranges);
  for (int r = 0; r <= last_rank(); ++r)
    EXPECT_TRUE(at::equal(rows.select(0, r), at::full({5}, r, at::kBFloat16)));
}

TEST(CommunicatorTest, AllReduceAddsInTheOrderOfTheRanks) {
  at::manual_seed(world().rank());
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t count : {1, 7, 1000, 4099}) {
      const at::Tensor own = (at::randn({count}) * 1e3).to(dtype);
      const at::Tensor all = world().all_gather(own);
      at::Tensor expected = all[0].to(dtype == at::kBFloat16 ? at::kFloat : dtype, false, true);
      for (int r = 1; r <= last_rank(); ++r) expected.add_(all[r]);
      at::Tensor sum = own.clone();
      world().all_reduce_sum(sum);
      EXPECT_TRUE(at::equal(sum, expected.to(dtype))) << count << " of " << dtype;
    }
  }
}

TEST(CommunicatorTest, AllReduceTakesIntegersAndStridedTensors) {
  at::Tensor strided = marked(world().rank(), {3, 4}, at::kLong).t();
  const at::Tensor expected = world().all_gather(strided).sum(0);
  world().all_reduce_sum(strided);
  EXPECT_TRUE(at::equal(strided, expected));
}

TEST(CommunicatorTest, AllReduceOfMoreThanOnePiece) {
  at::Tensor big = at::full({(64 << 20) / 8 + 13}, int64_t{1} << world().rank(), at::kLong);
  world().all_reduce_sum(big);
  EXPECT_EQ(big.min().item<int64_t>(), (int64_t{1} << world().world_size()) - 1);
  EXPECT_EQ(big.max().item<int64_t>(), (int64_t{1} << world().world_size()) - 1);
}

TEST(CommunicatorTest, AllMaxFindsTheLargest) {
  EXPECT_EQ(world().all_max(-world().rank()), 0);
  EXPECT_EQ(world().all_max(world().rank()), last_rank());
}

TEST(CommunicatorTest, MessagesPassRoundTheRing) {
  FLOTILLA_NEEDS_RANKS(2);
  const int next = (world().rank() + 1) % world().world_size();
  const int previous = (world().rank() + last_rank()) % world().world_size();
  at::Tensor received = at::zeros({300, 1000});
  const auto give = [&] {
    world().send(marked(world().rank(), {300, 1000}), next, 1);
    world().send("from " + std::to_string(world().rank()), next, 2);
  };
  const auto take = [&] {
    world().receive(received, previous, 1);
    EXPECT_EQ(world().receive_text(previous, 2), "from " + std::to_string(previous));
  };
  if (world().is_driver()) {
    give();
    take();
  } else {
    take();
    give();
  }
  EXPECT_TRUE(at::equal(received, marked(previous, {300, 1000})));
}

TEST(CommunicatorTest, GroupsKeepTheOrderAndKnowTheWorldsRanks) {
  const auto group = world().split(world().rank() % 2);
  EXPECT_EQ(group->rank(), world().rank() / 2);
  for (int r = 0; r < group->world_size(); ++r)
    EXPECT_EQ(group->world_rank(r), 2 * r + world().rank() % 2);
  const at::Tensor all = group->all_gather(marked(world().rank(), {2}));
  for (int r = 0; r < group->world_size(); ++r)
    EXPECT_TRUE(at::equal(all[r], marked(group->world_rank(r), {2})));
  group->close();
}

TEST(CommunicatorTest, CommunicatorsOfPhasesAreSeparate) {
  FLOTILLA_NEEDS_RANKS(2);
  // A message of one phase is not taken for one of another, though the order differs.
  Communicator& text = test::ranks().text();
  Communicator& decoder = test::ranks().decoder();
  if (text.rank() == 0) {
    text.send("text", 1, 0);
    decoder.send("decoder", 1, 0);
  } else if (text.rank() == 1) {
    EXPECT_EQ(decoder.receive_text(0, 0), "decoder");
    EXPECT_EQ(text.receive_text(0, 0), "text");
  }
}

// The text of the error that `body` must throw.
template <typename Body>
std::string communication_error(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::communication);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(DeadlineTest, BarrierNamesTheMissingRank) {
  FLOTILLA_NEEDS_RANKS(2);
  if (world().rank() == last_rank()) {
    // A rank that gives up goes on, which the patience of those that still wait counts from.
    std::this_thread::sleep_for(milliseconds(400 * world().world_size()));
    world().barrier("late", 60);
  } else {
    const std::string text = communication_error([] { world().barrier("stage border", 0.2); });
    EXPECT_THAT(text, AllOf(HasSubstr("stage border"),
                            HasSubstr("rank " + std::to_string(last_rank()) + " did not come")));
  }
  world().barrier("together again", 60);
}

TEST(DeadlineTest, GroupsNameRanksOfTheWorld) {
  FLOTILLA_NEEDS_RANKS(4);
  const auto group = world().split(world().rank() % 2);
  if (world().rank() == 3) {
    std::this_thread::sleep_for(milliseconds(1000));
    group->barrier("b", 60);
  } else if (world().rank() % 2 == 1) {
    EXPECT_THAT(communication_error([&] { group->barrier("b", 0.2); }),
                HasSubstr("rank 3 did not"));
  }
  world().barrier("together again", 60);
  group->close();
}

TEST(DeadlineTest, BarrierHoldsUntilTheLastRankComes) {
  for (int round = 0; round < 200; ++round) {
    const int64_t before = world().all_max(round);
    EXPECT_EQ(before, round);
    world().barrier("round", 60);
  }
}

TEST(AgreementTest, SuccessLetsAllGoOn) {
  EXPECT_NO_THROW(agree(world(), std::nullopt));
  EXPECT_EQ(agreed(world(), [] { return 7; }), 7);
}

// The agreed error that all ranks must get.
template <typename Body>
void expect_agreed(ErrorKind kind, const testing::Matcher<std::string>& text, const Body& body) {
  try {
    body();
    ADD_FAILURE() << "no error";
  } catch (const AgreedError& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_THAT(std::string(error.what()), text);
    EXPECT_EQ(error.speaks(), world().is_driver());
  }
}

TEST(AgreementTest, OneRanksErrorReachesAll) {
  FLOTILLA_NEEDS_RANKS(2);
  expect_agreed(ErrorKind::memory, HasSubstr("rank 1: out of host memory"), [] {
    agreed(world(), [] {
      if (world().rank() == 1) throw std::bad_alloc();
    });
  });
}

TEST(AgreementTest, AnErrorOfAllIsToldWithoutRanks) {
  expect_agreed(ErrorKind::config, std::string("job.yaml:3:1: wrong"), [] {
    agreed(world(), []() -> int { fail(ErrorKind::config, "job.yaml:3:1: wrong"); });
  });
}

TEST(AgreementTest, DifferentErrorsAreAllToldAndTheCauseGivesTheKind) {
  FLOTILLA_NEEDS_RANKS(3);
  expect_agreed(ErrorKind::input,
                AllOf(HasSubstr("rank 0: peer lost"), HasSubstr("rank 2: bad file"),
                      Not(HasSubstr("rank 1"))),
                [] {
                  agreed(world(), [] {
                    if (world().rank() == 0) fail(ErrorKind::communication, "peer lost");
                    if (world().rank() == 2) fail(ErrorKind::input, "bad file");
                  });
                });
}

TEST(AgreementTest, NestedAgreementsTellOnce) {
  expect_agreed(ErrorKind::output, std::string("full"), [] {
    agreed(world(), [] { agreed(world(), [] { fail(ErrorKind::output, "full"); }); });
  });
}

TEST(AgreementTest, DifferentValuesAreTold) {
  FLOTILLA_NEEDS_RANKS(2);
  EXPECT_NO_THROW(agree_on(world(), "tokens", 5));
  expect_agreed(ErrorKind::internal, AllOf(HasSubstr("tokens differs"), HasSubstr("8, 9")),
                [] { agree_on(world(), "tokens", world().rank() == 0 ? 8 : 9); });
}

}  // namespace
}  // namespace flotilla::comm
