#include "config/writer.h"

#include <gtest/gtest.h>

#include "config/job_text.h"

namespace flotilla::config {
namespace {

using test::contains;
using test::kGoodJob;
using test::kTwoStageJob;

std::vector<Job> sample_jobs() {
  return {
      test::job_of(kGoodJob),
      test::job_of(kGoodJob + "seed: 18446744073709551615\nvideo: {frame_rate: 29.97}\n"
                              "stage_1: {sigmas: [1, 0.99375, 0.1, 0]}\n"
                              "output: {path: \"ä \\\"x\\\" #1: y.mp4\", audio: false}\n"),
      test::job_of(
          test::kModels +
          "prompt: \"two\\nlines, \\\"quotes\\\", back\\\\slash, \\x1b and \xE2\x80\xA8\"\n"
          "images: [{path: a}, {path: b, frame: 8, strength: 0.3333333333333333, crf: 5}]\n"),
      test::job_of(kTwoStageJob),
      test::job_of(kTwoStageJob +
                   "negative_prompt: no\nstage_1: {sigmas: [0.5, 0], guidance_groups: 4, guidance: "
                   "{audio: {stg: 0, stg_blocks: []}, video: {stg_blocks: [3, 1], cfg: 1e-3}}}\n"
                   "stage_2: {parallel: tdp, sigmas: [0.625, 0.4, 0], tiles: {grid: [1, 2, 2]}}\n"
                   "decoder: {tiles: {overlap: [0, 4, 4]}, tiling: {temporal: {size: 64}}}\n"
                   "limits: {max_hours: 0.1, stop_file: stop}\nthreads: 3\n"
                   "checkpoint: {path: c.h5, every_steps: 2, resume: auto}\n"),
      test::job_of("models: {transformer: t, video_vae: v, audio_vae: a, spatial_upsampler: u,\n"
                   "  text_encoder: g, loras: [{path: x}, {path: y, strength: -0.5}]}\n"
                   "prompt: ''\ndecoder: {tiling: off}\n"),
  };
}

TEST(WriterTest, WritesWhatReadsBackAsTheSameJob) {
  for (const Job& job : sample_jobs()) {
    const std::string text = to_yaml(job);
    const Job again = load_job_text(text, "printed", "/elsewhere").job;
    EXPECT_EQ(again, job) << text;
    EXPECT_EQ(to_yaml(again), text);
  }
}

TEST(WriterTest, LeavesOutKeysOfOtherPipelines) {
  EXPECT_FALSE(contains(to_yaml(test::job_of(kGoodJob)), "guidance"));
  EXPECT_TRUE(contains(to_yaml(test::job_of(kTwoStageJob)), "    video:\n      cfg: 3\n"));
}

TEST(WriterTest, NamesEveryValueWithDots) {
  const auto jobs = sample_jobs();
  const auto value = [](const Job& job, const std::string& key) {
    for (const auto& [name, text] : dotted_values(job)) {
      if (name == key) return text;
    }
    return std::string("missing");
  };
  EXPECT_EQ(value(jobs[4], "stage_1.guidance.video.stg_blocks"), "[3, 1]");
  EXPECT_EQ(value(jobs[4], "decoder.tiling.temporal.size"), "64");
  EXPECT_EQ(value(jobs[4], "seed"), "");
  EXPECT_NE(value(jobs[5], "models.loras[1].path"), "missing");
  for (const auto& [name, text] : dotted_values(test::job_of(kGoodJob)))
    EXPECT_FALSE(name.starts_with("stage_1.guidance")) << name;
}

TEST(WriterTest, TellsJobsApart) {
  const auto jobs = sample_jobs();
  for (size_t i = 0; i < jobs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(jobs[i], jobs[j]) << i << " " << j;
  }
}

}  // namespace
}  // namespace flotilla::config
