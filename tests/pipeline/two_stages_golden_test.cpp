// The guided two-stage pipeline end to end against the reference in float32; with text alone and
// with an image at frame 0. Stage 1 runs all four guidance passes, stage 2 with the distilled LoRA.
#include "pipeline/two_stages.h"

#include <gtest/gtest.h>

#include "pipeline/end_to_end.h"
#include "support/device.h"

namespace flotilla {
namespace {

constexpr double kTolerance = 2e-4;

config::ModalityGuidance guidance_of(const nlohmann::json& params, const char* cfg) {
  return {.cfg = params.at(cfg).get<double>(),
          .stg = params.at("stg").get<double>(),
          .modality = params.at("modality").get<double>(),
          .rescale = params.at("rescale").get<double>(),
          .skip_step = 0,
          .stg_blocks = params.at("stg_blocks").get<std::vector<int64_t>>()};
}

config::Job job_of(const nlohmann::json& params, config::Device device = config::Device::cpu) {
  config::Job base = test::tiny_two_stage_job();
  base.device = device;
  base.negative_prompt = params.at("negative_prompt").get<std::string>();
  base.stage_1.steps = params.at("steps").get<int64_t>();
  base.stage_1.guidance.video = guidance_of(params, "video_cfg");
  base.stage_1.guidance.audio = guidance_of(params, "audio_cfg");
  config::Job job = test::end_to_end_job(base, params);
  if (params.contains("keyframe_index")) {
    job.images.push_back({.path = job.images.front().path,
                          .frame = params.at("keyframe_index").get<int64_t>(),
                          .strength = params.at("keyframe_strength").get<double>(),
                          .crf = 0});
  }
  const auto sigmas = params.at("stage_2_sigmas").get<std::string>();
  EXPECT_TRUE(sigmas == "stage2_distilled" || sigmas == "tdp_distilled") << sigmas;
  if (sigmas == "tdp_distilled") {
    job.stage_2.parallel = config::Stage2Parallel::tdp;
    job.stage_2.tiles.grid = params.at("tdp_grid").get<config::TileGrid>();
    job.stage_2.tiles.overlap = params.at("tdp_overlap").get<int64_t>();
    job.decoder.tiles = test::decoder_tiles_of(params);
  }
  return job;
}

using TwoStagesGoldenTest = test::EndToEndTest;

TEST_P(TwoStagesGoldenTest, LatentsFramesAndSoundMatch) {
  if (GetParam().device == config::Device::cuda) FLOTILLA_REQUIRE_GPU();
  test::PieceRunner runner(job_of(golden_.params(), GetParam().device));
  const auto latents = check_latents(runner, pipeline::run_two_stages);
  check_frames(runner.decode(latents.video));
  check_sound(pipeline::decode_audio(runner.session(), latents.audio));
}

TEST_P(TwoStagesGoldenTest, FirstNoiseMatchesToTheBit) {
  check_noise(test::PieceRunner(job_of(golden_.params())));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, TwoStagesGoldenTest,
    ::testing::Values(test::EndToEndCase{"e2e_ti2vid_t2v", kTolerance},
                      test::EndToEndCase{"e2e_ti2vid_i2v", kTolerance},
                      test::EndToEndCase{"e2e_ti2vid_t2v", kTolerance, config::Device::cuda},
                      test::EndToEndCase{"e2e_ti2vid_i2v", kTolerance, config::Device::cuda}),
    test::case_name);

// Stage 2 and the decode in tiles, on one rank.
using TiledTwoStagesGoldenTest = test::EndToEndTest;

TEST_P(TiledTwoStagesGoldenTest, LatentsFramesAndSoundMatch) {
  test::PieceRunner runner(job_of(golden_.params()));
  ASSERT_EQ(runner.plan.stage_2.method, pipeline::StageParallel::tiles);
  const auto latents = check_latents(runner, pipeline::run_two_stages);
  check_frames(runner.decode(latents.video));
  check_sound(pipeline::decode_audio(runner.session(), latents.audio));
}

INSTANTIATE_TEST_SUITE_P(Text, TiledTwoStagesGoldenTest,
                         ::testing::Values(test::EndToEndCase{"e2e_ti2vid_t2v_tdp", kTolerance}));
INSTANTIATE_TEST_SUITE_P(ImageAndKeyframe, TiledTwoStagesGoldenTest,
                         ::testing::Values(test::EndToEndCase{"e2e_ti2vid_i2v_kf_tdp",
                                                              kTolerance}));

// Pass by pass, as at full size, the bound is the same.
TEST(TwoStagesOrderGoldenTest, PassesInSequenceMatchToo) {
  const test::Golden golden("e2e_ti2vid_t2v");
  test::PieceRunner runner(job_of(golden.params()));
  ASSERT_EQ(runner.plan.stage_1.guidance.order, pipeline::PassOrder::batch);
  runner.plan.stage_1.guidance.order = pipeline::PassOrder::sequence;
  pipeline::RunState state;
  const auto latents = pipeline::run_two_stages(runner.session(), *runner.job.seed, state);
  EXPECT_TRUE(test::all_close(latents.video, golden["stage2.video_latent"], kTolerance));
  EXPECT_TRUE(test::all_close(latents.audio, golden["stage1.audio_latent"], kTolerance));
}

TEST(TwoStagesFramesGoldenTest, FloatFramesMatch) {
  test::check_float_frame("e2e_ti2vid_t2v", kTolerance);
}

TEST(TwoStagesImagesGoldenTest, EncodedImagesMatchAtBothSizes) {
  const test::Golden golden("e2e_ti2vid_i2v");
  test::PieceRunner runner(job_of(golden.params()));
  test::check_image_latents(runner, golden, kTolerance);
}

}  // namespace
}  // namespace flotilla
