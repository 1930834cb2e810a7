// Whole jobs on several ranks against one rank: SP equal within rounding, equal bytes in exact
// mode, guidance groups and tiles alike; and what cannot be spread is refused on all ranks.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "pipeline/jobs.h"
#include "pipeline/two_stages.h"
#include "support/compare.h"
#include "support/mpi_main.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

// 24 video tokens in stage 1 and 96 in stage 2; 3 frames of latents, so 2, 4 and 8 ranks divide
// both and the odd clip below divides neither.
config::Job small(config::Job job) {
  job.prompt = "a boat";
  job.video = {.width = 256, .height = 128, .num_frames = 17, .frame_rate = {24}};
  job.stage_2.parallel = config::Stage2Parallel::sp;
  job.sp.exchange_timeout_seconds = 120;
  return job;
}

config::Job odd(config::Job job) {
  job = small(std::move(job));
  job.video.width = 192;
  job.video.num_frames = 9;  // 2 x 2 x 3 = 12 tokens, then 48
  return job;
}

config::Job guided() {
  config::Job job = small(test::tiny_two_stage_job());
  job.stage_1.steps = 3;
  job.stage_1.guidance.video.stg_blocks = {{1}};
  job.stage_1.guidance.audio.stg_blocks = {{1}};
  job.stage_2.parallel = config::Stage2Parallel::sp;
  return job;
}

// The clip's latents, made by all ranks, or by each alone.
pipeline::ClipLatents render(const config::Job& job, pipeline::Ranks ranks) {
  const pipeline::ModelFiles files(job.models);
  const pipeline::Plan plan = pipeline::make_plan(job, files, ranks.world_size());
  pipeline::Phases phases(plan.device);
  const pipeline::Session session{job, files, plan, phases, {}, ranks};
  pipeline::RunState state;
  return job.pipeline == config::Pipeline::distilled
             ? pipeline::run_distilled(session, *job.seed, state)
             : pipeline::run_two_stages(session, *job.seed, state);
}

pipeline::Ranks all_ranks() { return {&test::ranks()}; }

// The bound for another number of ranks: reduction order, 1e-4 relative.
void expect_close(const pipeline::ClipLatents& actual, const pipeline::ClipLatents& expected) {
  const auto relative = [](const at::Tensor& x) { return 1e-4 * x.abs().max().item<double>(); };
  EXPECT_TRUE(test::all_close(actual.video, expected.video, relative(expected.video)));
  EXPECT_TRUE(test::all_close(actual.audio, expected.audio, relative(expected.audio)));
}

void expect_equal(const pipeline::ClipLatents& actual, const pipeline::ClipLatents& expected) {
  EXPECT_TRUE(test::same_bytes(actual.video, expected.video));
  EXPECT_TRUE(test::same_bytes(actual.audio, expected.audio));
}

// Every rank must hold the driver's bytes: ranks that drift would exchange nonsense.
void expect_alike_on_all_ranks(const pipeline::ClipLatents& latents) {
  for (const at::Tensor& own : {latents.video, latents.audio}) {
    at::Tensor drivers = own.clone();
    test::ranks().world().broadcast(drivers, 0);
    EXPECT_TRUE(test::same_bytes(own, drivers));
  }
}

TEST(RanksTest, SequenceParallelEqualsOneRank) {
  for (const auto& job : {small(test::tiny_job()), odd(test::tiny_job())}) {
    const auto together = render(job, all_ranks());
    expect_alike_on_all_ranks(together);
    expect_close(together, render(job, {}));
  }
}

TEST(RanksTest, ExactModeGivesTheBytesOfOneRank) {
  for (config::Job job : {small(test::tiny_job()), odd(test::tiny_job())}) {
    job.reproducible = config::Reproducible::world;
    expect_equal(render(job, all_ranks()), render(job, {}));
  }
}

TEST(RanksTest, GuidanceGroupsEqualOneRank) {
  config::Job job = guided();
  const auto alone = render(job, {});
  for (const int64_t groups : {1, 2, 4}) {
    if (test::ranks().world_size() % groups != 0) continue;
    job.stage_1.guidance_groups = groups;
    SCOPED_TRACE(groups);
    const auto together = render(job, all_ranks());
    expect_alike_on_all_ranks(together);
    expect_close(together, alone);
  }
}

TEST(RanksTest, ExactModeHoldsForGuidanceGroups) {
  config::Job job = guided();
  job.reproducible = config::Reproducible::world;
  expect_equal(render(job, all_ranks()), render(job, {}));
}

// Weights of 8 bits, with scales or without, and LoRAs fused into a rank's share of them.
TEST(RanksTest, ExactModeHoldsForEightBitWeights) {
  for (const auto precision : {config::Precision::fp8_cast, config::Precision::fp8_scaled_mm}) {
    config::Job job = guided();
    job.precision = precision;
    job.reproducible = config::Reproducible::world;
    const auto together = render(job, all_ranks());
    expect_alike_on_all_ranks(together);
    expect_equal(together, render(job, {}));
  }
}

TEST(RanksTest, TilesEqualOneRankDoingTheSameTiles) {
  config::Job job = guided();
  job.stage_2.parallel = config::Stage2Parallel::tdp;
  job.stage_2.tiles.grid = config::TileGrid{1, 1, 2};
  const auto together = render(job, all_ranks());
  expect_alike_on_all_ranks(together);
  expect_close(together, render(job, {}));
}

TEST(RanksTest, StageAlikeOnAllRanksNeedsNoExchange) {
  config::Job job = small(test::tiny_job());
  job.stage_1.parallel = config::Stage1Parallel::none;
  job.stage_2.parallel = config::Stage2Parallel::none;
  expect_equal(render(job, all_ranks()), render(job, {}));
}

// How prompts are spread changes no byte of the contexts; of the rest the exact mode takes care.
TEST(RanksTest, TextOverTheRanksEqualsOneRank) {
  config::Job job = guided();
  job.reproducible = config::Reproducible::world;
  const auto alone = render(job, {});
  for (const auto split : {config::TextParallel::shard, config::TextParallel::replicate}) {
    job.text.parallel = split;
    const auto together = render(job, all_ranks());
    expect_alike_on_all_ranks(together);
    expect_equal(together, alone);
  }
}

TEST(RanksTest, EnhancedPromptIsTheOneOfOneRankOnAllRanks) {
  config::Job job = small(test::tiny_job());
  job.text.enhance = true;
  const auto enhance = [&](const pipeline::Ranks& ranks) {
    const pipeline::ModelFiles files(job.models);
    const pipeline::Plan plan = pipeline::make_plan(job, files, ranks.world_size());
    pipeline::Phases phases(plan.device);
    return pipeline::enhance_prompt({job, files, plan, phases, {}, ranks});
  };
  const std::string own = enhance(all_ranks());
  EXPECT_EQ(own, enhance({}));
  for (const auto& theirs : test::ranks().world().all_gather(own)) EXPECT_EQ(theirs, own);
}

TEST(RanksTest, PromptThatMayNotBeCutIsRefusedOnAllRanks) {
  config::Job job = small(test::tiny_job());
  job.prompt.clear();
  for (int i = 0; i < 2000; ++i) job.prompt += "word ";
  job.text.strict_length = true;
  EXPECT_THROW(render(job, all_ranks()), comm::AgreedError);
}

TEST(RanksTest, HeadsThatDoNotDivideAreRefusedWithTheCountsThatDo) {
  const config::Job job = small(test::tiny_job());  // 8 heads
  const pipeline::ModelFiles files(job.models);
  EXPECT_THAT(
      [&] { pipeline::make_plan(job, files, 3); },
      ::testing::ThrowsMessage<Error>(::testing::AllOf(
          HasSubstr("heads (8) must be divisible by world_size (3)"), HasSubstr("1, 2, 4"))));
}

TEST(RanksTest, MoreTokensThanTheExchangeHoldsAreRefusedWithTheFigures) {
  config::Job job = small(test::tiny_job());
  job.sp.max_tokens = 50;
  const pipeline::ModelFiles files(job.models);
  EXPECT_THAT([&] { pipeline::make_plan(job, files, 2); },
              ::testing::ThrowsMessage<Error>(
                  HasSubstr("Total video token count (96) exceeds attention_manager "
                            "max_tokens (50). Use a smaller resolution or fewer frames.")));
}

TEST(RanksTest, TilesNotLargerThanTheOverlapAreRefused) {
  config::Job job = guided();
  job.stage_2.parallel =
      config::Stage2Parallel::tdp;  // 8 ranks: 2 rows of 4 columns on 4 x 8 cells
  const pipeline::ModelFiles files(job.models);
  EXPECT_THROW(pipeline::make_plan(job, files, 8), Error);
}

}  // namespace
}  // namespace flotilla
