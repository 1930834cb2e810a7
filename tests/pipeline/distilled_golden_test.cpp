// The distilled pipeline end to end against the reference in float32; with text alone and with an
// image at frame 0.
#include "pipeline/distilled.h"

#include <gtest/gtest.h>

#include "pipeline/end_to_end.h"
#include "support/device.h"

namespace flotilla {
namespace {

constexpr double kTolerance = 5e-5;

config::Job job_of(const nlohmann::json& params, config::Device device = config::Device::cpu) {
  config::Job base = test::tiny_job();
  base.device = device;
  return test::end_to_end_job(base, params);
}

using DistilledGoldenTest = test::EndToEndTest;

TEST_P(DistilledGoldenTest, LatentsFramesAndSoundMatch) {
  if (GetParam().device == config::Device::cuda) FLOTILLA_REQUIRE_GPU();
  test::PieceRunner runner(job_of(golden_.params(), GetParam().device));
  const auto latents = check_latents(runner, pipeline::run_distilled);
  check_frames(runner.decode(latents.video));
  check_sound(pipeline::decode_audio(runner.session(), latents.audio));
}

TEST_P(DistilledGoldenTest, FirstNoiseMatchesToTheBit) {
  check_noise(test::PieceRunner(job_of(golden_.params())));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, DistilledGoldenTest,
    ::testing::Values(test::EndToEndCase{"e2e_distilled_t2v", kTolerance},
                      test::EndToEndCase{"e2e_distilled_i2v", kTolerance},
                      test::EndToEndCase{"e2e_distilled_t2v", kTolerance, config::Device::cuda},
                      test::EndToEndCase{"e2e_distilled_i2v", kTolerance, config::Device::cuda}),
    test::case_name);

TEST(DistilledFramesGoldenTest, FloatFramesMatch) {
  test::check_float_frame("e2e_distilled_t2v", kTolerance);
}

TEST(DistilledImagesGoldenTest, EncodedImagesMatchAtBothSizes) {
  const test::Golden golden("e2e_distilled_i2v");
  test::PieceRunner runner(job_of(golden.params()));
  test::check_image_latents(runner, golden, kTolerance);
}

}  // namespace
}  // namespace flotilla
