// Conditioning beyond the goldens: masks of several items, items that do not fit, dtypes.
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "diffusion/conditioning.h"
#include "diffusion/noise.h"
#include "support/compare.h"

namespace flotilla::diffusion {
namespace {

const VideoGrid kGrid{.size = {.channels = 4, .frames = 2, .height = 2, .width = 3}};

// Far from any noise.
constexpr float kClean = 100.0f;
at::Tensor image() { return at::full({1, 4, 1, 2, 3}, kClean); }

LatentState conditioned(const std::vector<ConditioningItem>& items,
                        at::ScalarType dtype = at::kFloat) {
  return apply_conditioning(make_video_state(kGrid, at::TensorOptions().dtype(dtype)), kGrid,
                            items);
}

TEST(ConditioningTest, MasksOfTwoItemsKeepThemApart) {
  const at::Tensor weights = at::tensor({0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f});
  const LatentState state =
      conditioned({AppendKeyframe{.latent = image(), .pixel_frame = 8},
                   AppendKeyframe{.latent = image(), .pixel_frame = 4, .attention = weights},
                   AppendKeyframe{.latent = image(), .pixel_frame = 5}});
  const at::Tensor mask = state.attention_mask[0];  // 12 own tokens, then 6 of each item
  ASSERT_EQ(mask.size(0), 12 + 3 * 6);
  const auto block = [&](int64_t row, int64_t column) {
    return mask.slice(0, row, row + 6).slice(1, column, column + 6);
  };
  EXPECT_TRUE(block(0, 12).eq(1).all().item<bool>());  // first item: no strength asked
  EXPECT_TRUE(test::same_bytes(block(0, 18)[0], weights));
  EXPECT_TRUE(test::same_bytes(block(18, 0).select(1, 0), weights));
  EXPECT_TRUE(block(12, 18).eq(0).all().item<bool>());  // items do not see each other
  EXPECT_TRUE(block(18, 24).eq(0).all().item<bool>());
  EXPECT_TRUE(block(24, 24).eq(1).all().item<bool>());
  EXPECT_TRUE(block(24, 6).eq(1).all().item<bool>());  // third item: fully
  EXPECT_TRUE(mask.eq(mask.t()).all().item<bool>());
}

TEST(ConditioningTest, StateOfTheCallerStaysAsItWas) {
  const LatentState before = make_video_state(kGrid, at::TensorOptions().dtype(at::kFloat));
  const std::vector<ConditioningItem> items = {ReplaceFrame{.latent = image()}};
  const LatentState after = apply_conditioning(before, kGrid, items);
  EXPECT_EQ(before.clean.sum().item<float>(), 0.0f);
  EXPECT_EQ(before.denoise_mask.sum().item<float>(), 12.0f);
  EXPECT_EQ(after.clean.sum().item<float>(), 24.0f * kClean);
  EXPECT_EQ(after.latent.sum().item<float>(), 0.0f);
}

TEST(ConditioningTest, FullStrengthTokensStartClean) {
  NoiseGenerator generator(3);
  const LatentState state = add_noise(
      conditioned(
          {ReplaceFrame{.latent = image()}, AppendKeyframe{.latent = image(), .pixel_frame = 8}},
          at::kBFloat16),
      generator, 1.0);
  EXPECT_EQ(state.latent.scalar_type(), at::kBFloat16);
  EXPECT_EQ(state.denoise_mask.scalar_type(), at::kFloat);
  EXPECT_TRUE(state.latent.slice(1, 0, 6).eq(kClean).all().item<bool>());
  EXPECT_TRUE(state.latent.slice(1, 12).eq(kClean).all().item<bool>());
  EXPECT_FALSE(state.latent.slice(1, 6, 12).eq(kClean).any().item<bool>());
}

TEST(ConditioningTest, ItemsThatDoNotFitAreRefused) {
  const std::vector<ConditioningItem> bad = {
      ReplaceFrame{.latent = at::ones({1, 4, 1, 3, 3})},
      ReplaceFrame{.latent = at::ones({1, 5, 1, 2, 3})},
      ReplaceFrame{.latent = image(), .latent_frame = 2},
      ReplaceFrame{.latent = image(), .latent_frame = -1},
      ReplaceFrame{.latent = image(), .strength = 1.5},
      AppendKeyframe{.latent = at::ones({4, 1, 2, 3})},
      AppendKeyframe{.latent = at::ones({2, 4, 1, 2, 3})},
      AppendKeyframe{.latent = image(), .strength = -0.1},
      AppendKeyframe{.latent = image(), .attention = at::ones({5})},
      AppendReference{.latent = image(), .attention = at::ones({2, 6})},
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THROW(conditioned({bad[i]}), Error) << "item " << i;
  }
}

TEST(LatentStateTest, FirstLatentOfAnotherSizeIsRefused) {
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat);
  EXPECT_THROW(make_video_state(kGrid, options, at::ones({1, 4, 2, 2, 2})), Error);
  EXPECT_THROW(make_audio_state({.frames = 3}, options, at::ones({1, 8, 2, 16})), Error);
}

}  // namespace
}  // namespace flotilla::diffusion
