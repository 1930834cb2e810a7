// Which points of a sweep a process makes, in which order, and when a point counts as done.
#include "pipeline/sweep_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "support/temp_dir.h"

namespace flotilla::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

config::Sweep sweep_of(const std::string& points, const std::string& folder = "/clips") {
  return config::load_sweep_text(
      "job:\n  models: {checkpoint: m.safetensors, spatial_upsampler: u.safetensors,\n"
      "    text_encoder: gemma}\n  prompt: a fox\n  seed: 1\n  output: {path: x.mp4, latents: "
      "x.h5}\n"
      "output: {folder: " +
          folder + "}\n" + points,
      "sweep.yaml", "/jobs");
}

// One clip and its record.
class SurveyTest : public ::testing::Test {
 protected:
  SurveyTest() : sweep_(sweep_of("grid: {seed: [1]}\n", dir_.path().string())) {
    test::write_file(dir_ / "0000.mp4", "clip");
    test::write_file(dir_ / "0000.h5", "latents");
  }
  io::PointRecord record(io::PointEvent event, double time_s) const {
    io::PointRecord record;
    record.hash = sweep_.points[0].hash;
    record.name = "0000";
    record.event = event;
    record.time_s = time_s;
    if (event == io::PointEvent::done)
      record.files = {*io::record_file(dir_.path(), "0000.mp4"),
                      *io::record_file(dir_.path(), "0000.h5")};
    return record;
  }
  void write(const io::PointRecord& record, const std::string& file = "sweep.jsonl") const {
    io::SweepManifest(dir_ / file).append(record);
  }
  PointStatus status() const { return survey(sweep_, {0}).at(0); }

  test::TempDir dir_;
  config::Sweep sweep_;
};

TEST(SweepOrderTest, PointsOfTheSameModelsThenLorasThenPromptsAreTogether) {
  const auto sweep = sweep_of(
      "grid:\n  models.checkpoint: [a.st, b.st]\n  seed: [1, 2]\n"
      "  models.loras: [[], [{path: l.st}]]\n  prompt: [a fox, a cat]\n");
  // Points 0 to 7 are of model a, and of them 0, 1, 4, 5 without a LoRA.
  EXPECT_THAT(order_points(sweep),
              ElementsAre(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
}

TEST(SweepOrderTest, ShardsAreSlicesThatCoverAllPointsOnce) {
  const auto sweep = sweep_of("grid: {seed: [1, 2, 3, 4, 5, 6, 7]}\n");
  for (int64_t count = 1; count <= 9; ++count) {
    std::vector<size_t> all;
    for (int64_t number = 1; number <= count; ++number) {
      const auto part = select_points(sweep, {SweepSelection::What::shard, number, count});
      EXPECT_LE(part.size(), static_cast<size_t>(7 / count + 1));
      all.insert(all.end(), part.begin(), part.end());
    }
    EXPECT_EQ(all, order_points(sweep)) << count;
  }
  EXPECT_THAT(select_points(sweep, {SweepSelection::What::point, 6, 1}), ElementsAre(6));
  for (const auto& wrong : {SweepSelection{SweepSelection::What::point, 7, 1},
                            SweepSelection{SweepSelection::What::shard, 0, 3},
                            SweepSelection{SweepSelection::What::shard, 4, 3}})
    EXPECT_THROW(select_points(sweep, wrong), Error);
}

TEST_F(SurveyTest, WhatIsRecordedAndThereIsDone) {
  EXPECT_EQ(status().state, PointState::pending);
  EXPECT_FALSE(status().known);
  write(record(io::PointEvent::started, 1));
  EXPECT_EQ(status().state, PointState::started);
  write(record(io::PointEvent::done, 2));
  EXPECT_EQ(status().state, PointState::done);
  // In another process's file, and by a clock that is behind.
  write(record(io::PointEvent::failed, 3), "sweep.point-0.jsonl");
  EXPECT_EQ(status().state, PointState::done);
}

TEST_F(SurveyTest, WhatHasChangedSinceIsToBeMadeAgain) {
  write(record(io::PointEvent::done, 2));
  test::write_file(dir_ / "0000.mp4", "clap");
  EXPECT_EQ(status().state, PointState::pending);
  EXPECT_TRUE(status().known);
  EXPECT_THAT(status().note, HasSubstr("\"0000.mp4\" has changed"));
  std::filesystem::remove(dir_ / "0000.mp4");
  EXPECT_THAT(status().note, HasSubstr("\"0000.mp4\" is gone"));
}

TEST_F(SurveyTest, ARecordWithoutAFileThatIsWantedNowIsNoProof) {
  io::PointRecord old = record(io::PointEvent::done, 2);
  old.files.pop_back();
  write(old);
  EXPECT_EQ(status().state, PointState::pending);
  EXPECT_THAT(status().note, HasSubstr("\"0000.h5\" was not made then"));
}

TEST_F(SurveyTest, AFailedPointStaysSoUntilItIsStartedAgain) {
  write(record(io::PointEvent::failed, 1));
  EXPECT_EQ(status().state, PointState::failed);
  write(record(io::PointEvent::started, 2));
  EXPECT_EQ(status().state, PointState::started);
}

TEST_F(SurveyTest, RecordsOfOtherJobsAndNamesDoNotCount) {
  io::PointRecord other = record(io::PointEvent::done, 1);
  other.hash = "0123456789abcdef";
  write(other);
  other = record(io::PointEvent::done, 1);
  other.name = "0001";
  write(other);
  EXPECT_EQ(status().state, PointState::pending);
}

}  // namespace
}  // namespace flotilla::pipeline
