// Stop and resume on several ranks: a wish on any rank stops all of them at the same safe point,
// and the run goes on equally on the same ranks, in exact mode on any number of them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>

#include "base/error.h"
#include "pipeline/jobs.h"
#include "support/compare.h"
#include "support/mpi_main.h"
#include "support/temp_dir.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

pipeline::Ranks all_ranks() { return {&test::ranks()}; }

// In a folder of the driver's that all ranks know.
class ResumeRanksTest : public ::testing::Test {
 protected:
  ResumeRanksTest() {
    const std::string folder = test::ranks().world().broadcast(own_.path().string(), 0);
    job_ = test::tiny_job();
    job_.prompt = "a boat";
    job_.video = {.width = 256, .height = 128, .num_frames = 17, .frame_rate = {24}};
    job_.sp.exchange_timeout_seconds = 120;
    job_.stage_2.parallel = config::Stage2Parallel::sp;
    job_.output.path = folder + "/clip.y4m";
    job_.output.latents = folder + "/clip.h5";
    job_.output.overwrite = true;
    job_.checkpoint = {folder + "/state.h5", 0, config::Resume::never};
  }

  struct End {
    std::string stopped;
    pipeline::ClipLatents latents;  // where the file was written
  };
  // `stop_at`: the look for a signal, from 1, at which rank `stopper` finds one; 0: none does.
  End run(config::Job job, const pipeline::Ranks& ranks, int stop_at, int stopper = 0) const {
    pipeline::RunControl control;
    int polls = 0;
    control.stop.signal = [&] {
      return ++polls == stop_at && ranks.rank() == stopper ? SIGTERM : 0;
    };
    if (ranks.is_driver()) control.resume = pipeline::find_checkpoint(job);
    const auto outputs =
        ranks.is_driver() ? pipeline::Outputs::checked : pipeline::Outputs::ignored;
    auto prepared = pipeline::prepare_job({job, config::Origins()}, test::host(), outputs, ranks);
    End end;
    try {
      pipeline::run_job(prepared, test::host(), ranks, control);
      wait(ranks);  // for the driver's files
      const auto file = io::read_latents(job.output.latents);
      end.latents = {file.tensors.at(io::latents::kStage2Video),
                     file.tensors.at(io::latents::kStage2Audio)};
    } catch (const comm::AgreedError& error) {
      EXPECT_EQ(error.kind(), ErrorKind::stopped) << error.what();
      end.stopped = error.what();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::stopped) << error.what();
      end.stopped = error.what();
    }
    wait(ranks);
    return end;
  }
  static void wait(const pipeline::Ranks& ranks) {
    if (ranks.context != nullptr) ranks.context->world().barrier("the others' run", 60);
  }
  // The driver alone; the others wait.
  End run_alone(const config::Job& job, int stop_at) const {
    End end;
    if (test::ranks().is_driver()) end = run(job, {}, stop_at);
    test::ranks().world().barrier("one rank's run", 120);
    return end;
  }
  static config::Job resumed(config::Job job) {
    job.checkpoint.resume = config::Resume::must;
    return job;
  }
  static void expect_equal(const pipeline::ClipLatents& actual,
                           const pipeline::ClipLatents& expected) {
    EXPECT_TRUE(test::same_bytes(actual.video, expected.video));
    EXPECT_TRUE(test::same_bytes(actual.audio, expected.audio));
  }

  test::TempDir own_;
  config::Job job_;
};

// In text, in both stages and in the decode; asked for by the last rank alone.
TEST_F(ResumeRanksTest, AnyRankStopsAllAndTheyGoOnToTheSameBytes) {
  const auto expected = run(job_, all_ranks(), 0);
  ASSERT_EQ(expected.stopped, "");
  for (const int stop_at : {2, 8, 14, 16, 18}) {
    SCOPED_TRACE(stop_at);
    const End first = run(job_, all_ranks(), stop_at, test::ranks().world_size() - 1);
    EXPECT_THAT(first.stopped, HasSubstr("stopped by SIGTERM"));
    const End second = run(resumed(job_), all_ranks(), 0);
    expect_equal(second.latents, expected.latents);
  }
}

TEST_F(ResumeRanksTest, ExactModeGoesOnEquallyOnAnotherNumberOfRanks) {
  job_.reproducible = config::Reproducible::world;
  const auto expected = run(job_, all_ranks(), 0).latents;
  for (const int stop_at : {8, 15}) {
    SCOPED_TRACE(stop_at);
    EXPECT_NE(run(job_, all_ranks(), stop_at).stopped, "");
    const End alone = run_alone(resumed(job_), 0);
    if (test::ranks().is_driver()) expect_equal(alone.latents, expected);
    const End first = run_alone(job_, stop_at);
    if (test::ranks().is_driver()) EXPECT_NE(first.stopped, "");
    expect_equal(run(resumed(job_), all_ranks(), 0).latents, expected);
  }
}

TEST_F(ResumeRanksTest, AnotherNumberOfRanksIsEqualUpToTheOrderOfSums) {
  const auto expected = run(job_, all_ranks(), 0).latents;
  EXPECT_NE(run(job_, all_ranks(), 8).stopped, "");
  const End alone = run_alone(resumed(job_), 0);
  if (!test::ranks().is_driver()) return;
  EXPECT_TRUE(test::all_close(alone.latents.video, expected.video,
                              1e-4 * expected.video.abs().max().item<double>()));
}

// The checkpoint has the grid of tiles that the number of ranks gave; other tiles are another job.
TEST_F(ResumeRanksTest, TilesOfAnotherGridAreRefused) {
  config::Job job = job_;
  job.pipeline = config::Pipeline::ti2vid_two_stages;
  job.models = test::tiny_two_stage_job().models;
  job.stage_1.steps = 3;
  job.stage_1.guidance.video.stg_blocks = {{1}};
  job.stage_1.guidance.audio.stg_blocks = {{1}};
  job.stage_2.parallel = config::Stage2Parallel::tdp;
  job.stage_2.tiles.overlap = 1;
  EXPECT_NE(run(job, all_ranks(), 8).stopped, "");
  if (!test::ranks().is_driver()) return;
  const auto found = pipeline::find_checkpoint(resumed(job));
  auto prepared = pipeline::prepare_job({job, config::Origins()}, test::host());
  EXPECT_THAT(
      [&] {
        pipeline::check_same_job(*found, prepared.job, prepared.plan, prepared.files->digest());
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("stage_2.tiles.grid is [1, ")));
}

}  // namespace
}  // namespace flotilla
