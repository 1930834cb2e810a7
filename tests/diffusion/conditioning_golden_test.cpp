// Latent states after conditioning against the LTX-2 Python reference, commit 400fd31.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "diffusion/conditioning.h"
#include "diffusion/patchify.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla::diffusion {
namespace {

constexpr double kAtol = 1e-6;

// The video that the cases condition: its picture size is that of the first image, its length
// follows from the number of tokens. 24 frames per second.
VideoGrid grid_of(const test::Golden& golden) {
  VideoLatentSize size = size_of_video(golden["latent0.in.0"]);
  size.frames = golden["latent0.latent"].size(1) / size.tokens_per_frame();
  return {.size = size};
}

LatentState conditioned(const test::Golden& golden, const std::vector<ConditioningItem>& items) {
  const VideoGrid grid = grid_of(golden);
  const LatentState empty = make_video_state(grid, at::TensorOptions().dtype(at::kFloat));
  return apply_conditioning(empty, grid, items);
}

void expect_state(const test::Golden& golden, const std::string& name,
                  const std::vector<ConditioningItem>& items) {
  const LatentState state = conditioned(golden, items);
  EXPECT_TRUE(test::same_bytes(state.latent, golden[name + ".latent"]));
  EXPECT_TRUE(test::same_bytes(state.clean, golden[name + ".clean_latent"]));
  EXPECT_TRUE(test::all_close(state.denoise_mask, golden[name + ".denoise_mask"], kAtol));
  EXPECT_TRUE(test::all_close(state.positions, golden[name + ".positions"], kAtol));
  EXPECT_TRUE(test::same_bytes(state.keyframes_mask, golden[name + ".keyframes_mask"]));
  EXPECT_FALSE(state.attention_mask.defined());
  EXPECT_EQ(target_tokens(state).size(1), grid_of(golden).size.num_tokens());
}

TEST(ConditioningGoldenTest, ReplacedFirstFrame) {
  const test::Golden golden("conditioning");
  expect_state(golden, "latent0", {ReplaceFrame{.latent = golden["latent0.in.0"]}});
}

TEST(ConditioningGoldenTest, ReplacedFrameWithPartialStrength) {
  const test::Golden golden("conditioning");
  expect_state(
      golden, "latent1_s0.7",
      {ReplaceFrame{.latent = golden["latent1_s0.7.in.0"], .latent_frame = 1, .strength = 0.7}});
}

TEST(ConditioningGoldenTest, AppendedKeyframe) {
  const test::Golden golden("conditioning");
  expect_state(
      golden, "keyframe9",
      {AppendKeyframe{.latent = golden["keyframe9.in.0"], .pixel_frame = 9, .strength = 0.9}});
}

TEST(ConditioningGoldenTest, ReplacedFrameAndKeyframe) {
  const test::Golden golden("conditioning");
  expect_state(golden, "latent0_keyframe8",
               {ReplaceFrame{.latent = golden["latent0_keyframe8.in.0"]},
                AppendKeyframe{.latent = golden["latent0_keyframe8.in.1"], .pixel_frame = 8}});
}

TEST(ConditioningGoldenTest, HalfSizeReference) {
  const test::Golden golden("conditioning");
  expect_state(
      golden, "reference_half",
      {AppendReference{.latent = golden["reference_half.in.0"], .scale = {.downscale = 2}}});
}

TEST(ConditioningGoldenTest, AttentionStrengthOfAKeyframe) {
  const test::Golden golden("conditioning");
  const LatentState state =
      conditioned(golden, {AppendKeyframe{.latent = golden["keyframe9.in.0"],
                                          .pixel_frame = 9,
                                          .strength = 0.9,
                                          .attention = at::scalar_tensor(0.5)}});
  EXPECT_TRUE(
      test::all_close(state.attention_mask, golden["keyframe9_attn0.5.attention_mask"], kAtol));
}

}  // namespace
}  // namespace flotilla::diffusion
