// The decode of a job on several ranks: frames and sound of one rank, the reference's frames of the
// runs that were decoded in tiles, and errors that all ranks agree on.
#include "pipeline/decode.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "parallel/distributed_decoder.h"
#include "pipeline/end_to_end.h"
#include "pipeline/job_fixture.h"
#include "support/compare.h"
#include "support/mpi_main.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

pipeline::Ranks all_ranks() { return {&test::ranks()}; }

// 4 x 8 latent cells and 17 frames: `auto` cuts columns.
config::Job small_job() {
  config::Job job = test::tiny_job();
  job.video = {.width = 256, .height = 128, .num_frames = 17, .frame_rate = {24}};
  job.prompt = "a boat";
  return job;
}

pipeline::ClipLatents random_latents(const pipeline::Plan& plan) {
  at::manual_seed(11);
  const auto& video = plan.stage_2.grid.size;
  const auto& audio = plan.audio;
  return {at::randn({1, video.channels, video.frames, video.height, video.width}),
          at::randn({1, audio.channels, audio.frames, audio.mel_bins})};
}

struct Clip {
  at::Tensor frames;
  std::optional<audio::Waveform> sound;
};

// On the driver; elsewhere empty.
Clip decode(const config::Job& job, pipeline::Ranks ranks) {
  test::PieceRunner runner(job, ranks);
  io::FrameCollector collector(runner.plan.format);
  Clip clip;
  clip.sound = pipeline::decode_clip(runner.session(), random_latents(runner.plan),
                                     ranks.is_driver() ? &collector : nullptr);
  if (ranks.is_driver()) clip.frames = collector.frames().clone();
  return clip;
}

TEST(DecodeRanksTest, FramesAndSoundAreThoseOfOneRankWithTheSameGrid) {
  config::Job job = small_job();
  job.decoder.tiles.grid = config::TileGrid{1, 1, 2};
  const Clip together = decode(job, all_ranks());
  EXPECT_EQ(together.sound.has_value(), test::ranks().is_driver());
  if (!test::ranks().is_driver()) return;
  const Clip alone = decode(job, {});
  EXPECT_TRUE(test::same_bytes(together.frames, alone.frames));
  EXPECT_TRUE(test::same_bytes(together.sound->samples, alone.sound->samples));
  EXPECT_EQ(together.sound->sample_rate, alone.sound->sample_rate);
}

TEST(DecodeRanksTest, SilentJobHasNoSound) {
  config::Job job = small_job();
  job.output.audio = false;
  EXPECT_FALSE(decode(job, all_ranks()).sound);
}

TEST(DecodeRanksTest, OneTileLeavesTheOtherRanksIdle) {
  config::Job job = small_job();
  job.decoder.tiles.grid = config::TileGrid{1, 1, 1};
  const Clip together = decode(job, all_ranks());
  if (!test::ranks().is_driver()) return;
  EXPECT_TRUE(test::same_bytes(together.frames, decode(small_job(), {}).frames));
}

TEST(DecodeRanksTest, AutoCutsTheClipUnlessTheResultMustBeThatOfOneRank) {
  config::Job job = small_job();
  EXPECT_GT(test::PieceRunner(job, all_ranks()).plan.decode.grid.num_tiles(), 1);
  job.reproducible = config::Reproducible::world;
  EXPECT_EQ(test::PieceRunner(job, all_ranks()).plan.decode.grid.num_tiles(), 1);
  EXPECT_EQ(test::PieceRunner(small_job()).plan.decode.grid.num_tiles(), 1);
}

TEST(DecodeRanksTest, TileThatIsNotFiniteFailsOnAllRanks) {
  config::Job job = small_job();
  job.decoder.tiles.grid = config::TileGrid{1, 1, 2};
  test::PieceRunner runner(job, all_ranks());
  pipeline::ClipLatents latents = random_latents(runner.plan);
  latents.video[0][0][0][0][7] = std::numeric_limits<float>::quiet_NaN();
  try {
    runner.decode(latents.video);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::non_finite);
    EXPECT_THAT(error.what(), HasSubstr("rank 1: decode_video: tile 2 of 2"));
  }
}

TEST(DecodeRanksTest, SoundThatIsNotFiniteFailsOnAllRanks) {
  test::PieceRunner runner(small_job(), all_ranks());
  pipeline::ClipLatents latents = random_latents(runner.plan);
  latents.audio.fill_(std::numeric_limits<float>::quiet_NaN());
  io::FrameCollector collector(runner.plan.format);
  EXPECT_THAT(
      [&] {
        pipeline::decode_clip(runner.session(), latents,
                              test::ranks().is_driver() ? &collector : nullptr);
      },
      ::testing::ThrowsMessage<Error>(HasSubstr("the decoded sound has non-finite samples")));
}

TEST(DecodeRanksTest, TimeThatIsCutTwiceIsRefusedBeforeAnyWork) {
  config::Job job = small_job();
  job.video.num_frames = 33;  // 5 latent frames: tiles of 3
  job.decoder.tiles = {config::TileGrid{2, 1, 1}, {{0, 4, 4}}};
  job.decoder.tiling.mode = config::TilingMode::manual;
  job.decoder.tiling.temporal = {.size = 16, .overlap = 0};
  EXPECT_THAT([&] { test::PieceRunner(job, all_ranks()); },
              ::testing::ThrowsMessage<Error>(::testing::AllOf(
                  HasSubstr("decoder.tiles.grid"), HasSubstr("decoder.tiling.temporal"))));
}

// `flotilla decode` on all ranks.
class DecodeJobTest : public test::JobTest {
 protected:
  // Writes `name`.y4m and `name`.json on the driver and gives their bytes.
  std::pair<std::string, nlohmann::json> decode_to(const std::string& name,
                                                   const pipeline::Ranks& ranks) const {
    const auto loaded =
        load(job_text("distilled", "",
                      fmt::format("seed: 1\noutput: {{path: {0}.y4m, metrics: {0}.json}}\n"
                                  "decoder: {{tiles: {{grid: [1, 1, 2], overlap: 2}}}}\n",
                                  name)));
    const auto prepared = pipeline::prepare_job(
        loaded, test::host(),
        ranks.is_driver() ? pipeline::Outputs::checked : pipeline::Outputs::ignored, ranks);
    const pipeline::ClipLatents latents = random_latents(prepared.plan);
    io::LatentsFile file;
    file.tensors[io::latents::kStage2Video] = latents.video;
    file.tensors[io::latents::kStage2Audio] = latents.audio;
    pipeline::decode_job(prepared, file, test::host(), ranks);
    if (!ranks.is_driver()) return {};
    return {read(name + ".y4m"), nlohmann::json::parse(read(name + ".json"))};
  }

 private:
  std::string read(const std::string& name) const {
    std::ifstream file(dir_ / name, std::ios::binary);
    EXPECT_TRUE(file) << name;
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(DecodeJobTest, AllRanksWriteTheClipOfOneRank) {
  const auto [clip, metrics] = decode_to("together", all_ranks());
  if (!test::ranks().is_driver()) return;
  EXPECT_TRUE(clip == decode_to("alone", {}).first);
  EXPECT_EQ(metrics.at("plan").at("decode_tiles"), 2);
  EXPECT_THAT(metrics.at("plan").at("decode").get<std::string>(), HasSubstr("over 2 ranks"));
  EXPECT_TRUE(metrics.at("phases").at("decode_audio_s").is_number());
}

// The golden clips whose frames come from tiles: decoded from the golden's latents.
class TiledFramesGoldenTest : public test::EndToEndTest {};

TEST_P(TiledFramesGoldenTest, FramesMatch) {
  config::Job job = test::end_to_end_job(test::tiny_job(), golden_.params());
  job.decoder.tiles = test::decoder_tiles_of(golden_.params());
  test::PieceRunner runner(job, all_ranks());
  const at::Tensor frames = runner.decode(golden_["stage2.video_latent"]);
  if (test::ranks().is_driver()) check_frames(frames);
}

// The first frame before it is rounded to bytes.
TEST_P(TiledFramesGoldenTest, FloatFrameMatches) {
  if (!golden_.has("frames_f32.0_every4px")) GTEST_SKIP() << "not stored for this clip";
  config::Job job = test::end_to_end_job(test::tiny_job(), golden_.params());
  job.decoder.tiles = test::decoder_tiles_of(golden_.params());
  const test::PieceRunner runner(job, all_ranks());
  const auto decoder =
      vae::VideoDecoder::from_checkpoint(runner.files.video_vae(), at::kFloat, at::kCPU);
  at::Tensor first;
  parallel::DistributedDecoder(runner.plan.decode, &test::ranks().decoder())
      .decode(&decoder, golden_["stage2.video_latent"], [&](const at::Tensor& frames) {
        if (!first.defined()) first = frames[0].clone();
      });
  if (!test::ranks().is_driver()) return;
  check("frames_f32.0_every4px", first.slice(0, 0, {}, 4).slice(1, 0, {}, 4));
}

INSTANTIATE_TEST_SUITE_P(Cases, TiledFramesGoldenTest,
                         ::testing::Values(test::EndToEndCase{"e2e_ti2vid_t2v_tdp", 2e-4},
                                           test::EndToEndCase{"e2e_ti2vid_i2v_kf_tdp", 2e-4}));

}  // namespace
}  // namespace flotilla
