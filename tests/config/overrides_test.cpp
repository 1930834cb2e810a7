#include "config/overrides.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "config/job_text.h"

namespace flotilla::config {
namespace {

using test::contains;
using test::job_of;
using test::kGoodJob;
using test::kTwoStageJob;
using test::refusal;

Override set(std::string_view text) { return parse_set(text); }

TEST(OverridesTest, ComeAfterTheFile) {
  const Job job = job_of(kGoodJob + "video: {width: 128, height: 128}\n",
                         {set("video.width=192"), set("seed=7"), set("seed=8")});
  EXPECT_EQ(job.video.width, 192);
  EXPECT_EQ(job.video.height, 128);
  EXPECT_EQ(job.seed, 8U) << "the last one counts";
}

TEST(OverridesTest, TakeListsAndMapsAsYaml) {
  const Job job =
      job_of(kTwoStageJob + "stage_1: {guidance: {video: {cfg: 2, stg: 0.5}}}\n",
             {set("stage_2.sigmas=[0.9, 0.4, 0]"), set("stage_1.guidance.video={cfg: 4}")});
  EXPECT_EQ(job.stage_2.sigmas, (Sigmas{0.9, 0.4, 0.0}));
  EXPECT_EQ(job.stage_1.guidance.video.cfg, 4.0);
  EXPECT_EQ(job.stage_1.guidance.video.stg, 1.0) << "the map replaces the file's map";
}

TEST(OverridesTest, ReachListElementsByNumber) {
  const std::string text = kGoodJob + "images: [{path: a.png}, {path: b.png, frame: 8}]\n";
  const Job job = job_of(text, {set("images.0.strength=0.25"), set("images[1].frame=16"),
                                set("images.2={path: /c.png, frame: 24}")});
  ASSERT_EQ(job.images.size(), 3U);
  EXPECT_EQ(job.images[0].strength, 0.25);
  EXPECT_EQ(job.images[1].frame, 16);
  EXPECT_EQ(job.images[2].path, "/c.png");
  EXPECT_TRUE(contains(refusal(text, {set("images.5.frame=1")}), "\"5\" is no place in the list"));
  EXPECT_TRUE(contains(refusal(text, {set("images.path=a")}), "\"path\" is no place in the list"));
  EXPECT_EQ(job_of(kGoodJob, {set("images[0].path=/x.png")}).images[0].path, "/x.png");
}

TEST(OverridesTest, OpenPlainValuesToMaps) {
  const Job job = job_of(kGoodJob + "decoder: {tiling: off}\n",
                         {set("decoder.tiling.temporal={size: 64, overlap: 24}")});
  EXPECT_EQ(job.decoder.tiling.mode, TilingMode::manual);
  EXPECT_EQ(job.decoder.tiling.temporal.size, 64);
}

TEST(OverridesTest, TakeValuesAway) {
  const Job job = job_of(kGoodJob + "seed: 4\noutput: {latents: l.h5}\n",
                         {set("seed="), set("output.latents=")});
  EXPECT_FALSE(job.seed);
  EXPECT_TRUE(job.output.latents.empty());
}

TEST(OverridesTest, TakeRawTextAsItStands) {
  const Override prompt{
      .key = "prompt", .value = "*a*: \"fox\" # 1", .origin = "--prompt", .raw_string = true};
  EXPECT_EQ(job_of(kGoodJob, {prompt}).prompt, "*a*: \"fox\" # 1");
  const Override none{.key = "prompt", .value = "", .origin = "--prompt", .raw_string = true};
  EXPECT_EQ(job_of(kGoodJob, {none}).prompt, "");
  const Override bad{.key = "prompt", .value = "\xff", .origin = "--prompt", .raw_string = true};
  EXPECT_EQ(refusal(kGoodJob, {bad}), "--prompt: prompt: is not UTF-8 text");
}

TEST(OverridesTest, AreNamedInMessages) {
  EXPECT_EQ(refusal(kGoodJob, {set("video.width=wide")}),
            "--set video.width: found wide; expected integer, 64 to 16384");
  const Override seed{.key = "seed", .value = "-1", .origin = "--seed", .raw_string = false};
  EXPECT_EQ(refusal(kGoodJob, {seed}),
            "--seed: seed: found -1; expected integer, 0 to 18446744073709551615");
  EXPECT_EQ(refusal(kGoodJob, {set("video={width: 64, hight: 64}")}),
            "--set video: video.hight: unknown key; did you mean \"height\"?");
  EXPECT_EQ(refusal(kGoodJob, {set("vide.width=64")}),
            "--set vide.width: vide: unknown key; did you mean \"video\"?");
  EXPECT_TRUE(
      contains(refusal(kGoodJob, {set("prompt=a: b: c")}), "--set prompt: is not valid YAML"));
  EXPECT_TRUE(
      contains(refusal(kGoodJob, {set("video.width=100")}), "--set video.width: 100 is not"));
}

TEST(OverridesTest, CountPathsFromTheWorkingFolder) {
  const Job job = job_of(kGoodJob, {set("output.path=here.mp4")});
  EXPECT_EQ(job.output.path, std::filesystem::canonical(".") / "here.mp4");
  EXPECT_EQ(job.models.checkpoint, "/jobs/m.safetensors");
}

TEST(OverridesTest, MakeAJobWithoutAFile) {
  EXPECT_EQ(job_of("", {set("models={checkpoint: /m, spatial_upsampler: /u, text_encoder: /g}"),
                        set("prompt=a fox")})
                .prompt,
            "a fox");
}

TEST(OverridesTest, RefuseKeysThatAreNone) {
  for (const char* key : {"=1", "novalue", ""}) {
    EXPECT_THROW(parse_set(key), Error) << key;
  }
  for (const char* key :
       {"a..b=1", ".a=1", "a.=1", "a b=1", "a[0=1", "[0]=1", "a[0]b=1", "a[]=1"}) {
    EXPECT_TRUE(contains(refusal(kGoodJob, {set(key)}), "is no key")) << key;
  }
  std::string deep = "a";
  for (int i = 0; i < 100; ++i) deep += ".a";
  EXPECT_TRUE(contains(refusal(kGoodJob, {set(deep + "=1")}), "is no key"));
}

}  // namespace
}  // namespace flotilla::config
