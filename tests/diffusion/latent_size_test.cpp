// Sizes that do not divide, shapes that do not fit, schedules that cannot be.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/error.h"
#include "diffusion/latent_size.h"
#include "diffusion/patchify.h"
#include "diffusion/positions.h"
#include "diffusion/schedule.h"
#include "support/compare.h"

namespace flotilla::diffusion {
namespace {

template <typename Body>
std::string message_of(Body body, ErrorKind kind) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.message();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(LatentSizeTest, EveryBadSideIsNamedWithItsNeighbours) {
  const std::string message = message_of(
      [] { video_latent_size({.frames = 10, .height = 0, .width = 100, .frame_rate = 24}); },
      ErrorKind::config);
  EXPECT_NE(message.find("width (100) must be a multiple of 32; use 96 or 128"), std::string::npos)
      << message;
  EXPECT_NE(message.find("height (0) must be a multiple of 32; use 32"), std::string::npos)
      << message;
  EXPECT_NE(message.find("num_frames (10) must be 8 k + 1; use 9 or 17"), std::string::npos)
      << message;
}

TEST(LatentSizeTest, NegativeSizesAreRefused) {
  EXPECT_THROW(video_latent_size({.frames = -7, .height = 64, .width = 64}), Error);
  EXPECT_THROW(video_latent_size({.frames = 9, .height = -64, .width = 64}), Error);
}

TEST(LatentSizeTest, AudioFramesRoundHalfToEven) {
  const auto frames = [](int64_t pictures, double rate) {
    return audio_latent_size({.frames = pictures, .frame_rate = rate}).frames;
  };
  EXPECT_EQ(frames(1, 10.0), 2);  // 2.5
  EXPECT_EQ(frames(3, 50.0), 2);  // 1.5
  EXPECT_EQ(frames(7, 50.0), 4);  // 3.5
  EXPECT_EQ(frames(120, 24000.0 / 1001.0), 125);
}

TEST(LatentSizeTest, VideosWithoutSoundOrRateAreRefused) {
  EXPECT_THROW(audio_latent_size({.frames = 1, .frame_rate = 60.0}), Error);
  EXPECT_THROW(audio_latent_size({.frames = 9, .frame_rate = 0.0}), Error);
  EXPECT_THROW(
      audio_latent_size({.frames = 9, .frame_rate = std::numeric_limits<double>::quiet_NaN()}),
      Error);
}

TEST(PatchifyTest, TokensRunOverFramesRowsColumns) {
  const at::Tensor latent = at::arange(2 * 2 * 3 * 4, at::kFloat).view({1, 2, 2, 3, 4});
  const at::Tensor tokens = patchify_video(latent);
  EXPECT_TRUE(test::same_bytes(tokens[0][1 * 12 + 2 * 4 + 3],
                               at::stack({latent[0][0][1][2][3], latent[0][1][1][2][3]})));
}

TEST(PatchifyTest, WrongShapesAreRefused) {
  EXPECT_THROW(patchify_video(at::zeros({1, 2, 3, 4})), Error);
  EXPECT_THROW(patchify_audio(at::zeros({1, 0, 3, 4})), Error);
  EXPECT_THROW(
      unpatchify_video(at::zeros({1, 7, 2}), {.channels = 2, .frames = 2, .height = 2, .width = 2}),
      Error);
  EXPECT_THROW(unpatchify_audio(at::zeros({1, 7, 2}), {.channels = 1, .frames = 8, .mel_bins = 2}),
               Error);
}

TEST(PatchifyTest, BatchesStayApart) {
  const at::Tensor latent = at::randn({3, 4, 2, 3, 5});
  EXPECT_TRUE(
      test::same_bytes(unpatchify_video(patchify_video(latent), size_of_video(latent)), latent));
  const at::Tensor sound = at::randn({3, 4, 5, 2});
  EXPECT_TRUE(
      test::same_bytes(unpatchify_audio(patchify_audio(sound), size_of_audio(sound)), sound));
}

TEST(PositionsTest, NegativeKeyframesLieBeforeTheVideo) {
  const VideoGrid grid{.size = {.frames = 2, .height = 2, .width = 2}, .frame_rate = 25.0};
  const at::Tensor positions = keyframe_positions(grid, {.frames = 1, .height = 2, .width = 2}, -5);
  EXPECT_FLOAT_EQ(positions[0][0][0][0].item<float>(), -5.0f / 25.0f);
  EXPECT_FLOAT_EQ(positions[0][0][0][1].item<float>(), -4.0f / 25.0f);
}

TEST(PositionsTest, ReferenceAtAQuarterOfTheRateEndsWithTheVideo) {
  const VideoGrid grid{.size = {.frames = 5, .height = 1, .width = 1}, .frame_rate = 24.0};
  const at::Tensor target = video_positions(grid);
  const at::Tensor reference = reference_positions(grid, {.frames = 2, .height = 1, .width = 1},
                                                   {.downscale = 1, .temporal = 4});
  EXPECT_TRUE(test::all_close(reference[0][0][1][1], target[0][0][4][1], 1e-6));
  EXPECT_EQ(reference[0][0][0][0].item<float>(), 0.0f);
}

TEST(ScheduleTest, ImpossibleSchedulesAreRefused) {
  EXPECT_THROW(ltx2_sigmas(0), Error);
  EXPECT_THROW(linear_quadratic_sigmas(4, 0.025, 0), Error);
  EXPECT_THROW(linear_quadratic_sigmas(4, 0.025, 5), Error);
  EXPECT_THROW(beta_sigmas(-1), Error);
  EXPECT_THROW(beta_sigmas(3, 0.0, 0.6), Error);
  const std::string message =
      message_of([] { ltx2_sigmas(20, {.num_tokens = 67320}); }, ErrorKind::config);
  EXPECT_NE(message.find("67320 tokens"), std::string::npos) << message;
}

TEST(ScheduleTest, OnlyDescendingSigmasThatEndArePossible) {
  check_sigmas(distilled_sigmas());
  check_sigmas(tiled_stage_2_sigmas());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Sigmas& bad : {Sigmas{1.0f}, Sigmas{0.5f, 0.7f, 0.0f}, Sigmas{1.0f, 0.0f, 0.0f},
                            Sigmas{1.5f, 0.0f}, Sigmas{0.5f, nan}, Sigmas{0.5f, -0.1f}}) {
    EXPECT_THROW(check_sigmas(bad), Error);
  }
}

}  // namespace
}  // namespace flotilla::diffusion
