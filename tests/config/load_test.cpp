#include "config/load.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "config/job_text.h"
#include "support/temp_dir.h"

namespace flotilla::config {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::job_of;
using test::kGoodJob;
using test::kTwoStageJob;
using test::refusal;
using test::refusal_with;

TEST(LoadTest, FillsDefaults) {
  const Job job = job_of(kGoodJob);
  EXPECT_EQ(job.pipeline, Pipeline::distilled);
  EXPECT_EQ(job.prompt, "a fox");
  EXPECT_FALSE(job.seed);
  EXPECT_EQ(job.video, Video{});
  EXPECT_FALSE(job.stage_1.sigmas);
  EXPECT_EQ(job.output.path, "/jobs/out.mp4");
  EXPECT_TRUE(job.output.audio);
}

TEST(LoadTest, ReadsEveryKindOfValue) {
  const Job job = job_of(kTwoStageJob + R"(negative_prompt: no
seed: 0
noise_device: cuda
video: {width: 128, height: 192, num_frames: 9, frame_rate: 23.976}
images:
  - {path: a.png}
  - {path: b.png, frame: 8, strength: 0.5, crf: 0}
stage_1:
  steps: 4
  guidance_groups: 2
  guidance: {video: {cfg: 2, stg_blocks: [1, 2]}}
stage_2: {sigmas: [0.625, .4, 0], parallel: tdp, tiles: {overlap: 1, grid: [1, 1, 2]}}
sp: {exchange_timeout_seconds: 2.5}
decoder:
  tiles: {overlap: [0, 2, 3]}
  tiling: {spatial: {size: 512, overlap: 64}}
graphs: off
checkpoint: {path: c.h5}
limits: {max_hours: 1.5}
threads: 4
)");
  EXPECT_EQ(job.negative_prompt, "no");
  EXPECT_EQ(job.seed, 0U);
  EXPECT_EQ(job.noise_device, NoiseDevice::cuda);
  EXPECT_EQ(job.video.frame_rate, Rational(24000, 1001));
  ASSERT_EQ(job.images.size(), 2U);
  EXPECT_FALSE(job.images[0].crf);
  EXPECT_EQ(job.images[1], (Image{"/jobs/b.png", 8, 0.5, 0}));
  EXPECT_EQ(job.stage_1.guidance_groups, 2);
  EXPECT_EQ(job.stage_1.guidance.video.cfg, 2.0);
  EXPECT_EQ(job.stage_1.guidance.video.stg_blocks, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(job.stage_1.guidance.audio.cfg, 7.0);
  EXPECT_EQ(job.stage_2.sigmas, (Sigmas{0.625, 0.4, 0.0}));
  EXPECT_EQ(job.stage_2.tiles.grid, (TileGrid{1, 1, 2}));
  EXPECT_EQ(job.sp.exchange_timeout_seconds, 2.5);
  EXPECT_EQ(job.decoder.tiles.overlap.cells, (std::array<int64_t, 3>{0, 2, 3}));
  EXPECT_EQ(job.decoder.tiling.mode, TilingMode::manual);
  EXPECT_EQ(job.decoder.tiling.spatial.size, 512);
  EXPECT_FALSE(job.decoder.tiling.temporal.size);
  EXPECT_EQ(job.graphs, Graphs::off);
  EXPECT_EQ(job.limits.max_hours, 1.5);
  EXPECT_EQ(job.threads, 4);
}

TEST(LoadTest, TakesPromptsLiterally) {
  const auto prompt = [](const std::string& line) { return job_of(test::kModels + line).prompt; };
  EXPECT_EQ(prompt("prompt: no\n"), "no");
  EXPECT_EQ(prompt("prompt: 1.50\n"), "1.50");
  EXPECT_EQ(prompt("prompt: \"\"\n"), "");
  EXPECT_EQ(prompt("prompt: >-\n  two\n  lines\n"), "two lines");
  EXPECT_TRUE(contains(refusal(test::kModels + "prompt:\n"), "prompt: found nothing"));
  EXPECT_TRUE(contains(refusal(test::kModels + "prompt: [a]\n"), "prompt: found a list"));
}

TEST(LoadTest, AcceptsSeedsOfSixtyFourBits) {
  EXPECT_EQ(job_of(kGoodJob + "seed: 0\n").seed, 0U);
  EXPECT_EQ(job_of(kGoodJob + "seed: 9223372036854775807\n").seed, 9223372036854775807U);
  EXPECT_EQ(job_of(kGoodJob + "seed: 18446744073709551615\n").seed, 18446744073709551615U);
  EXPECT_FALSE(job_of(kGoodJob + "seed:\n").seed);
}

TEST(LoadTest, RefusesSeedsThatAreNone) {
  for (const char* seed : {"-1", "18446744073709551616", "abc", "1.5", "\"10\"", "0x10", "010",
                           "1_000", "[1]", "+5"}) {
    const std::string message = refusal_with(std::string("seed: ") + seed + "\n");
    EXPECT_TRUE(contains(message, "job.yaml:3:7: seed: found ")) << seed << ": " << message;
    EXPECT_TRUE(contains(message, "expected integer, 0 to 18446744073709551615")) << message;
  }
  EXPECT_TRUE(contains(refusal_with("seed: 1e3\n"), "found 1e3 (write 1000)"));
  EXPECT_TRUE(contains(refusal_with("seed: 24.0\n"), "found 24.0 (write 24)"));
  EXPECT_TRUE(contains(refusal_with("seed: 010\n"), "leading zero"));
  EXPECT_TRUE(contains(refusal_with("seed: \"10\"\n"), "because of the quotes"));
}

TEST(LoadTest, TakesOnlyTrueAndFalseForSwitches) {
  EXPECT_FALSE(job_of(kGoodJob + "output: {audio: false}\n").output.audio);
  for (const char* word : {"no", "yes", "on", "off", "True", "0", "\"false\""}) {
    const std::string message = refusal_with(std::string("output: {audio: ") + word + "}\n");
    EXPECT_TRUE(contains(message, "output.audio: found ")) << word;
    EXPECT_TRUE(contains(message, "expected true or false")) << word;
  }
}

TEST(LoadTest, RefusesNumbersThatAreNone) {
  const auto stage = [](const std::string& value) {
    return refusal(kTwoStageJob + "stage_1: {guidance: {video: {cfg: " + value + "}}}\n");
  };
  EXPECT_EQ(stage("2.5e0"), "");
  for (const char* value : {".inf", "nan", "1e999", "-1", "101", "three", "007", "0x1p3", "1,5"}) {
    EXPECT_NE(stage(value), "") << value;
  }
}

TEST(LoadTest, ReportsAllProblemsInTheOrderOfTheFile) {
  const std::string message = refusal(
      "prompt: a fox\n"
      "sede: 3\n"
      "video: {width: 100, height: tall, fps: 24}\n"
      "precision: bf61\n"
      "width: 64\n"
      "models: {checkpoint: m.safetensors}\n");
  EXPECT_EQ(message,
            "job.yaml:2:1: sede: unknown key; did you mean \"seed\"?\n"
            "job.yaml:3:16: video.width: 100 is not a multiple of 64 (stage 1 works at half size, "
            "and every stage needs multiples of 32); nearest: 64 or 128\n"
            "job.yaml:3:29: video.height: found tall; expected integer, 64 to 16384\n"
            "job.yaml:3:35: video.fps: unknown key; it is called video.frame_rate\n"
            "job.yaml:4:12: precision: found bf61; expected auto, fp32, bf16, fp8_cast or "
            "fp8_scaled_mm; did you mean \"bf16\"?\n"
            "job.yaml:5:1: width: unknown key here; did you mean \"video.width\"?\n"
            "job.yaml:6:9: models.spatial_upsampler: is missing; expected path (latent upsampler "
            "x2)\n"
            "job.yaml:6:9: models.text_encoder: is missing; expected path (Gemma: its Hugging Face "
            "folder)");
}

TEST(LoadTest, RefusesNamesOfThingsThatAreNotBuilt) {
  EXPECT_TRUE(
      contains(refusal_with("hdr: true\n"), "job.yaml:3:1: hdr: unknown key; HDR is not built"));
  EXPECT_TRUE(contains(refusal_with("dtype: float16\n"), "it is called precision"));
  EXPECT_TRUE(contains(refusal_with("precision: float16\n"), "float16 is refused: "));
  EXPECT_TRUE(contains(refusal_with("precision: float16\n"), "black frames"));
  EXPECT_TRUE(contains(refusal_with("precision: nvfp4\n"), "NVFP4 weights are not built"));
  EXPECT_TRUE(contains(refusal_with("pipeline: retake\n"), "retake is refused"));
  EXPECT_TRUE(contains(refusal_with("auto_duration: [1, 2]\n"), "automatic duration is not built"));
  EXPECT_TRUE(contains(refusal_with("generated_keyframes: 2\n"), "not built"));
}

TEST(LoadTest, WantsMapsAndListsWhereTheyBelong) {
  EXPECT_TRUE(
      contains(refusal_with("video: 64\n"), "job.yaml:3:8: video: found 64; expected a map"));
  EXPECT_TRUE(contains(refusal_with("images: a.png\n"), "images: found a.png; expected a list"));
  EXPECT_TRUE(
      contains(refusal_with("images: [a.png]\n"), "images[0]: found a.png; expected a map"));
  EXPECT_TRUE(contains(refusal_with("images: [{frame: 0}]\n"), "images[0].path: is missing"));
  EXPECT_TRUE(contains(refusal_with("decoder: {tiles: {grid: [1, 2]}}\n"), "found 2 elements"));
  EXPECT_TRUE(contains(refusal_with("decoder: {tiling: on}\n"), "expected auto or off"));
  EXPECT_TRUE(refusal("just text\n").starts_with("job.yaml:1:1: found just text; expected a map"));
  EXPECT_TRUE(refusal("- a\n- b\n").starts_with("job.yaml:1:1: found a list; expected a map"));
  EXPECT_EQ(test::count_lines(refusal("- a\n- b\n")), 1U) << "no word about what is missing in it";
  EXPECT_TRUE(contains(refusal(""), "holds no keys"));
  EXPECT_EQ(refusal_with("video:\nimages:\n"), "") << "sections without keys are defaults";
}

TEST(LoadTest, LimitsTheLengthOfLists) {
  std::string images = "images: [";
  for (int i = 0; i < 65; ++i) images += "{path: a.png, frame: 1}, ";
  EXPECT_TRUE(contains(refusal_with(images + "]\n"), "found 65 elements; at most 64"));
}

TEST(LoadTest, CountsPathsFromTheFileOfTheJob) {
  const test::TempDir folder;
  fs::create_directories(folder / "a b/ä;$(x)'");
  const fs::path file = folder / "a b/ä;$(x)'/job.yaml";
  test::write_file(file, kGoodJob + "output: {path: ../\"o\".mp4, latents: /abs/l.h5}\n");
  const Job job = load_job(file).job;
  const fs::path real = fs::canonical(folder.path());
  EXPECT_EQ(job.models.checkpoint, real / "a b/ä;$(x)'/m.safetensors");
  EXPECT_EQ(job.output.path, real / "a b/\"o\".mp4");
  EXPECT_EQ(job.output.latents, "/abs/l.h5");
}

TEST(LoadTest, FollowsLinkedFoldersAsTheSystemDoes) {
  const test::TempDir folder;
  fs::create_directories(folder / "real/inner");
  fs::create_directory_symlink(folder / "real/inner", folder / "link");
  test::write_file(folder / "real/inner/job.yaml", kGoodJob + "output: {path: ../o.mp4}\n");
  const Job job = load_job(folder / "link/job.yaml").job;
  EXPECT_EQ(job.output.path, fs::canonical(folder.path()) / "real/o.mp4");
}

TEST(LoadTest, ExpandsNothingInPaths) {
  for (const char* path : {"~/o.mp4", "~", "${HOME}/o.mp4", "$HOME/o.mp4"}) {
    const std::string message = refusal_with(std::string("output: {path: \"") + path + "\"}\n");
    EXPECT_TRUE(contains(message, "are not expanded")) << path;
  }
  EXPECT_EQ(job_of(kGoodJob + "output: {path: ./~x$HOME.mp4}\n").output.path, "/jobs/~x$HOME.mp4");
  EXPECT_TRUE(contains(refusal_with("output: {path: \"\"}\n"), "output.path: found \"\""));
  EXPECT_TRUE(contains(refusal_with("output: {path: }\n"), "output.path: found nothing"));
}

TEST(LoadTest, SaysWhatIsWrongWithTheFileItself) {
  const test::TempDir folder;
  const auto message = [](const fs::path& file) {
    try {
      load_job(file);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      return error.message();
    }
    return std::string();
  };
  EXPECT_TRUE(
      contains(message(folder / "none.yaml"), "none.yaml: the job file cannot be read: No"));
  EXPECT_TRUE(contains(message(folder.path()), "is a folder"));
  test::write_file(folder / "large.yaml", std::string(3 << 20, '#'));
  EXPECT_TRUE(contains(message(folder / "large.yaml"), "more than 1048576 bytes"));
}

TEST(LoadTest, ReadsTheShippedJobs) {
  const fs::path configs = fs::path(FLOTILLA_SOURCE_DIR) / "configs";
  const Job demo = load_job(configs / "demo.yaml").job;
  EXPECT_EQ(demo.seed, 10U);
  EXPECT_EQ(demo.video, (Video{384, 256, 25, Rational(24)}));
  EXPECT_TRUE(fs::exists(demo.models.text_encoder));
  EXPECT_EQ(load_job(configs / "distilled.yaml").job.video, Video{});
}

}  // namespace
}  // namespace flotilla::config
