// Which passes a step runs, what is reused when steps are skipped, and statistics of true tokens.
#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "diffusion/guided_denoiser.h"
#include "support/compare.h"
#include "toy.h"

namespace flotilla::diffusion {
namespace {

// Answers each pass with a toy prediction, scaled by the place of the pass.
class ToyPasses : public PassRunner {
 public:
  std::vector<AvTokens> run(const PassRequest& request, const AvLatents& latents,
                            double sigma) override {
    requests.push_back(request);
    std::vector<AvTokens> results;
    for (size_t i = 0; i < request.passes.size(); ++i) {
      const double scale = 1.0 / static_cast<double>(i + 1);
      results.push_back({.video = test::toy_prediction(latents.video.latent, sigma) * scale,
                         .audio = test::toy_prediction(latents.audio.latent, sigma) * scale});
    }
    return results;
  }
  std::vector<PassRequest> requests;
};

AvLatents random_latents() {
  return {.video = test::toy_state(at::randn({1, 6, 4})),
          .audio = test::toy_state(at::randn({1, 3, 4}))};
}

TEST(GuidedDenoiserTest, PlansOnlyThePassesThatAreNeeded) {
  const GuiderParams off;
  EXPECT_EQ(plan_passes(off, off, 0).passes, std::vector{PassKind::conditional});
  EXPECT_EQ(plan_passes(off, off, 0, true).passes,
            (std::vector{PassKind::conditional, PassKind::unconditional}));
  const GuiderParams stg{.stg_scale = 1.0, .stg_blocks = {1, 2}};
  const GuiderParams all{.cfg_scale = 7.0, .modality_scale = 3.0};
  const PassRequest request = plan_passes(stg, all, 0);
  EXPECT_EQ(request.passes, (std::vector{PassKind::conditional, PassKind::unconditional,
                                         PassKind::perturbed, PassKind::isolated}));
  EXPECT_EQ(request.video_stg_blocks, (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(request.audio_stg_blocks.empty());
}

TEST(GuidedDenoiserTest, SkippedStepsReuseTheLastResult) {
  ToyPasses passes;
  GuidedDenoiser denoiser(passes, GuiderSchedule(GuiderParams{.cfg_scale = 3.0, .skip_step = 1}),
                          GuiderSchedule(GuiderParams{.cfg_scale = 3.0, .skip_step = 2}));
  const AvPrediction first = denoiser.predict(random_latents(), 0.9, 0);
  const AvPrediction second = denoiser.predict(random_latents(), 0.8, 1);
  EXPECT_EQ(passes.requests.size(), 1u);  // both streams skip
  EXPECT_TRUE(test::same_bytes(second.video.denoised, first.video.denoised));
  const AvPrediction third = denoiser.predict(random_latents(), 0.7, 2);
  ASSERT_EQ(passes.requests.size(), 2u);  // the video is due, the sound is not
  EXPECT_TRUE(passes.requests[1].video_enabled);
  EXPECT_FALSE(passes.requests[1].audio_enabled);
  EXPECT_FALSE(third.video.denoised.equal(first.video.denoised));
  EXPECT_TRUE(test::same_bytes(third.audio.denoised, first.audio.denoised));
}

TEST(GuidedDenoiserTest, MemoryIsKeptOnlyWhereStepsAreSkipped) {
  ToyPasses passes;
  GuidedDenoiser plain(passes, GuiderSchedule(GuiderParams{}), GuiderSchedule(GuiderParams{}));
  plain.predict(random_latents(), 0.9, 0);
  EXPECT_TRUE(plain.memory().empty());
  GuidedDenoiser skipping(passes, GuiderSchedule(GuiderParams{.skip_step = 1}),
                          GuiderSchedule(GuiderParams{}));
  EXPECT_TRUE(skipping.memory().empty());
  skipping.predict(random_latents(), 0.9, 0);
  EXPECT_EQ(skipping.memory().size(), 2u);
  EXPECT_THROW(GuidedDenoiser(passes, GuiderSchedule(GuiderParams{.skip_step = 1}),
                              GuiderSchedule(GuiderParams{.skip_step = 1}))
                   .predict(random_latents(), 0.9, 1),
               Error);
}

TEST(GuiderTest, MissingPredictionIsABrokenInvariant) {
  EXPECT_THROW(guide({.cfg_scale = 2.0}, {.cond = at::ones({1, 2, 2})}), Error);
}

// Padding would change the standard deviation that the rescaling compares.
TEST(GuiderTest, RescalingSeesTrueTokensOnly) {
  const GuiderParams params{.cfg_scale = 3.0, .rescale = 0.7};
  const at::Tensor cond = at::randn({1, 7, 4});
  const at::Tensor uncond = at::randn({1, 7, 4});
  const at::Tensor alone = guide(params, {.cond = cond, .uncond = uncond});
  const at::Tensor padded_cond = at::constant_pad_nd(cond, {0, 0, 0, 2});
  const at::Tensor padded_uncond = at::constant_pad_nd(uncond, {0, 0, 0, 2}, 5.0);
  const at::Tensor cut =
      guide(params, {.cond = padded_cond.slice(1, 0, 7), .uncond = padded_uncond.slice(1, 0, 7)});
  EXPECT_TRUE(test::all_close(cut, alone, 1e-6));
  const at::Tensor leaked =
      guide(params, {.cond = padded_cond, .uncond = padded_uncond}).slice(1, 0, 7);
  EXPECT_FALSE(test::all_close(leaked, alone, 1e-3));
}

TEST(GuiderTest, GuidanceInBfloat16IsComputedInFloat) {
  const GuiderParams params{.cfg_scale = 3.0};
  const at::Tensor cond = at::randn({1, 7, 4}).to(at::kBFloat16);
  const at::Tensor uncond = at::randn({1, 7, 4}).to(at::kBFloat16);
  const at::Tensor exact =
      guide(params, {.cond = cond.to(at::kFloat), .uncond = uncond.to(at::kFloat)});
  EXPECT_TRUE(
      test::same_bytes(guide(params, {.cond = cond, .uncond = uncond}), exact.to(at::kBFloat16)));
}

TEST(GuiderTest, ScheduleNeedsDistinctBins) {
  EXPECT_THROW(GuiderSchedule(std::vector<std::pair<double, GuiderParams>>{}), Error);
  EXPECT_THROW(GuiderSchedule({{0.5, GuiderParams{}}, {0.5, GuiderParams{}}}), Error);
}

}  // namespace
}  // namespace flotilla::diffusion
