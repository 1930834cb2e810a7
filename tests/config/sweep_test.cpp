// Sweep files: what they expand to, what each point's job is, and what is refused where.
#include "config/sweep.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "config/job_hash.h"
#include "config/job_text.h"
#include "support/temp_dir.h"

namespace flotilla::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A sweep of a job in the text itself; `lines` begin in line 7.
std::string sweep_text(const std::string& lines, const std::string& name = "{index}") {
  return "job:\n  models: {checkpoint: m.safetensors, spatial_upsampler: u.safetensors,\n"
         "    text_encoder: gemma}\n  prompt: a fox\n  output: {path: x.y4m, latents: x.h5}\n"
         "output: {folder: clips, name: \"" +
         name + "\"}\n" + lines;
}

Sweep sweep_of(const std::string& lines, const std::string& name = "{index}",
               const std::vector<Override>& overrides = {}) {
  return load_sweep_text(sweep_text(lines, name), "sweep.yaml", "/jobs", overrides);
}

std::string refusal_of_text(const std::string& text, const std::vector<Override>& overrides = {}) {
  try {
    load_sweep_text(text, "sweep.yaml", "/jobs", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.message();
  }
  return "";
}
std::string refusal_of(const std::string& lines, const std::string& name = "{index}") {
  return refusal_of_text(sweep_text(lines, name));
}

// "seed=1 video.width=64" of each point.
std::vector<std::string> values_of(const Sweep& sweep) {
  std::vector<std::string> texts;
  for (const SweepPoint& point : sweep.points) {
    std::string text;
    for (const auto& [key, value] : point.values)
      text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, value);
    texts.push_back(text);
  }
  return texts;
}

TEST(SweepTest, GridIsAProductWhoseLastKeyChangesFastest) {
  const Sweep sweep = sweep_of("grid:\n  prompt: [a fox, a cat]\n  seed: [1, 2, 3]\n");
  EXPECT_THAT(values_of(sweep),
              ElementsAre("prompt=a fox seed=1", "prompt=a fox seed=2", "prompt=a fox seed=3",
                          "prompt=a cat seed=1", "prompt=a cat seed=2", "prompt=a cat seed=3"));
  for (int64_t i = 0; i < 6; ++i) {
    const SweepPoint& point = sweep.points[static_cast<size_t>(i)];
    EXPECT_EQ(point.index, i);
    EXPECT_EQ(point.loaded.job.prompt, i < 3 ? "a fox" : "a cat");
    EXPECT_EQ(point.loaded.job.seed, static_cast<uint64_t>(i % 3 + 1));
  }
}

TEST(SweepTest, ZippedKeysGoInStepInsideTheGrid) {
  const Sweep sweep = sweep_of(
      "grid: {seed: [1, 2]}\nzip:\n  video.width: [512, 768]\n  video.height: [256, 512]\n");
  EXPECT_THAT(values_of(sweep), ElementsAre("seed=1 video.width=512 video.height=256",
                                            "seed=1 video.width=768 video.height=512",
                                            "seed=2 video.width=512 video.height=256",
                                            "seed=2 video.width=768 video.height=512"));
  EXPECT_EQ(sweep.points[3].loaded.job.video.width, 768);
}

TEST(SweepTest, ExplicitPointsComeLastAndMayDiffer) {
  const Sweep sweep = sweep_of(
      "grid: {seed: [1]}\npoints:\n  - {seed: 7, prompt: a cat}\n  - models.loras: [{path: "
      "l.st}]\n");
  EXPECT_THAT(values_of(sweep),
              ElementsAre("seed=1", "seed=7 prompt=a cat", "models.loras=[{path: l.st}]"));
  EXPECT_EQ(sweep.points[2].loaded.job.models.loras.at(0).path, "/jobs/l.st");
}

TEST(SweepTest, ExcludedPointsLeaveNoGapInTheNumbers) {
  const Sweep sweep = sweep_of(
      "grid:\n  seed: [1, 2]\n  stage_2.sigmas: [auto, [0.5, 0]]\n"
      "exclude:\n  - {seed: 1, stage_2.sigmas: [0.50, 0]}\n");
  EXPECT_THAT(values_of(sweep),
              ElementsAre("seed=1 stage_2.sigmas=auto", "seed=2 stage_2.sigmas=auto",
                          "seed=2 stage_2.sigmas=[0.5, 0]"));
  EXPECT_EQ(sweep.points[2].index, 2);
}

TEST(SweepTest, FilesLieInTheFolderUnderThePointsName) {
  const Sweep sweep = sweep_of("grid:\n  prompt: [a fox, 'in A/B, at night: 50 %']\n  seed: [7]\n",
                               "{index:03}_{seed}_{prompt}_{video.width}");
  EXPECT_EQ(sweep.folder, "/jobs/clips");
  EXPECT_EQ(sweep.points[0].name, "000_7_a-fox_1536");
  EXPECT_EQ(sweep.points[1].name, "001_7_in-A-B-at-night-50_1536");
  const Job& job = sweep.points[0].loaded.job;
  EXPECT_EQ(job.output.path, "/jobs/clips/000_7_a-fox_1536.y4m");
  EXPECT_EQ(job.output.latents, "/jobs/clips/000_7_a-fox_1536.h5");
  EXPECT_EQ(job.output.metrics, "");
  EXPECT_EQ(job.checkpoint.path, "/jobs/clips/state/" + sweep.points[0].hash + ".h5");
  EXPECT_EQ(job.checkpoint.resume, Resume::automatic);
  EXPECT_EQ(point_file(sweep, sweep.points[0]), "/jobs/clips/000_7_a-fox_1536.yaml");
}

TEST(SweepTest, HashesAreThoseOfTheClipNotOfItsPlace) {
  const Sweep one = sweep_of("grid: {seed: [1, 2]}\n");
  const Sweep other = sweep_of("points: [{seed: 5}, {seed: 2}]\n", "clip_{seed}");
  EXPECT_EQ(one.points[1].hash, other.points[1].hash);
  EXPECT_NE(one.points[0].hash, one.points[1].hash);
  EXPECT_EQ(one.points[0].hash, job_hash(one.points[0].loaded.job));
}

TEST(SweepTest, JobMayBeAFileAndPathsCountFromTheirFiles) {
  const test::TempDir dir;
  std::filesystem::create_directories(dir / "jobs");
  test::write_file(dir / "jobs/job.yaml", test::kGoodJob + "seed: 9\n");
  test::write_file(dir / "sweep.yaml",
                   "job: jobs/job.yaml\ngrid: {models.checkpoint: [a.safetensors]}\n"
                   "output: {folder: clips}\n");
  const Sweep sweep =
      load_sweep(dir / "sweep.yaml", std::vector<Override>{{"seed", "4", "--seed", false}});
  const auto base = std::filesystem::canonical(dir.path());
  const Job& job = sweep.points.at(0).loaded.job;
  EXPECT_EQ(job.models.checkpoint, base / "a.safetensors");
  EXPECT_EQ(job.models.spatial_upsampler, base / "jobs/u.safetensors");
  EXPECT_EQ(job.seed, 4u);
  EXPECT_EQ(sweep.points[0].name, "0000");
  EXPECT_EQ(sweep.folder, base / "clips");
}

TEST(SweepTest, LimitsOfTheJobNeedNoCheckpointOfTheirOwn) {
  const Sweep sweep =
      sweep_of("grid: {seed: [1]}\n", "{index}",
               {{"limits.max_hours", "2", "", false}, {"checkpoint.every_steps", "3", "", false}});
  EXPECT_EQ(sweep.points[0].loaded.job.limits.max_hours, 2.0);
  EXPECT_EQ(sweep.points[0].loaded.job.checkpoint.every_steps, 3);
}

TEST(SweepTest, ProblemsOfPointsNameTheirPlaceAndThePoint) {
  const std::string text =
      refusal_of("grid:\n  seed: [1, 2]\n  video.width: [512, 100]\n  promt: [a]\n");
  EXPECT_THAT(text,
              AllOf(HasSubstr("sweep.yaml:9:22: video.width: 100 is not a multiple of 64"),
                    HasSubstr("points 1, 3"), HasSubstr("sweep.yaml:10:3: promt: unknown key"),
                    HasSubstr("did you mean \"prompt\"")));
  EXPECT_EQ(test::count_lines(text), 2u) << text;
  EXPECT_THAT(refusal_of("points: [{seed: 1}, {seed: x}]\n"),
              AllOf(HasSubstr("sweep.yaml:7:28: seed: "), HasSubstr("point 1 (seed: x)")));
}

TEST(SweepTest, ProblemsOfTheJobAreToldOnce) {
  const std::string text = refusal_of_text(
      "job: {prompt: a fox, sed: 3}\noutput: {folder: clips}\ngrid: {seed: [1, 2, 3]}\n");
  EXPECT_THAT(text,
              AllOf(HasSubstr("sweep.yaml:1:22: sed: unknown key"),
                    HasSubstr("models.spatial_upsampler: is missing"), Not(HasSubstr("points"))));
}

TEST(SweepTest, ProblemsOfTheSweepComeInOnePass) {
  const std::string text = refusal_of_text(
      "schema_version: 2\njob: {}\ngird: {seed: [1]}\ngrid: {seed: 3, prompt: []}\n"
      "zip: {seed: [1, 2], prompt: [a]}\npoints: [3]\noutput: {name: 1, foldr: x}\n");
  for (const char* part :
       {"sweep.yaml:1:17: schema_version: ",
        "sweep.yaml:3:1: gird: unknown key of a sweep; did you "
        "mean \"grid\"",
        "grid.seed: found 3; expected a list", "grid.prompt: holds no value",
        "zip.seed: sets what \"seed\" sets", "points[0]: found 3; expected a map",
        "output.foldr: unknown key of a sweep; did you mean \"folder\"",
        "output.folder: is missing"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(SweepTest, WhatCannotVaryOrMatchIsRefused) {
  EXPECT_THAT(refusal_of("grid: {output.path: [a.y4m]}\n"), HasSubstr("the sweep sees to output"));
  EXPECT_THAT(refusal_of("points: [{checkpoint: {path: a}}]\n"), HasSubstr("sees to checkpoint"));
  EXPECT_THAT(refusal_of("grid: {video: [{width: 64}], video.width: [64]}\n"),
              HasSubstr("grid.video.width: sets what \"video\" sets"));
  EXPECT_THAT(refusal_of("zip: {seed: [1, 2], prompt: [a]}\n"),
              HasSubstr("zip.prompt: holds 1 values where \"seed\" holds 2"));
  EXPECT_THAT(refusal_of("grid: {seed: [1]}\nexclude: [{seed: 4}]\n"),
              HasSubstr("exclude[0]: matches no point"));
  EXPECT_THAT(refusal_of("grid: {seed: [1]}\nexclude: [{sed: 1}]\n"),
              HasSubstr("exclude[0].sed: is no key that the sweep changes; did you mean \"seed\""));
  EXPECT_THAT(refusal_of("grid: {seed: [1]}\nexclude: [{seed: 1}]\n"), HasSubstr("has no points"));
  EXPECT_THAT(refusal_of(""), HasSubstr("has no points"));
  EXPECT_THAT(refusal_of("grid: {seed: [1, 1]}\n"), HasSubstr("points 0 and 1 of the sweep are the "
                                                              "same job"));
  EXPECT_THAT(refusal_of_text("- a\n"), HasSubstr("expected a map, the keys of a sweep"));
}

TEST(SweepTest, AnOptionThatTheSweepOverridesIsRefused) {
  const std::vector<Override> overrides = {{"seed", "4", "--seed", false}};
  EXPECT_THAT(refusal_of_text(sweep_text("grid: {seed: [1]}\n"), overrides),
              HasSubstr("seed: the sweep changes this key; leave --seed away"));
}

TEST(SweepTest, NamesMustTellPointsApartAndBeFileNames) {
  const std::string grid = "grid: {seed: [1, 2]}\n";
  EXPECT_THAT(refusal_of(grid, "clip"), HasSubstr("gives the name \"clip\" to points 0 and 1"));
  EXPECT_THAT(refusal_of(grid, "{sed}"), HasSubstr("{sed} is no key of the job"));
  EXPECT_THAT(refusal_of(grid, "a/{seed}"), HasSubstr("may hold letters"));
  EXPECT_THAT(refusal_of(grid, "{seed"), HasSubstr("without its }"));
  EXPECT_THAT(refusal_of(grid, "{seed:03}"), HasSubstr("only the index has a form"));
  EXPECT_THAT(refusal_of(grid, ".{seed}"), HasSubstr("not . or - in front"));
  EXPECT_THAT(refusal_of(grid, ""), HasSubstr("gives the name \"\""));
}

TEST(SweepTest, TooManyPointsAreRefusedBeforeTheyAreMade) {
  std::string values = "0";
  for (int i = 1; i < 200; ++i) values += fmt::format(", {}", i);
  EXPECT_THAT(refusal_of(fmt::format("grid: {{seed: [{0}], prompt: [{0}]}}\n", values)),
              HasSubstr("more than 10000 points"));
}

TEST(SweepTest, AJobThatIsNotThereIsNamed) {
  EXPECT_THAT(refusal_of_text("job: none.yaml\ngrid: {seed: [1]}\noutput: {folder: c}\n"),
              AllOf(HasSubstr("none.yaml"), HasSubstr("cannot be read")));
  EXPECT_THAT(refusal_of_text("grid: {seed: [1]}\noutput: {folder: c}\n"),
              HasSubstr("job: is missing"));
}

}  // namespace
}  // namespace flotilla::config
