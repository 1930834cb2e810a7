// The whole guided denoiser call against the reference: four passes of the transformer, combined.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pipeline/pass_runner.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla {
namespace {

using diffusion::PassKind;
using test::all_close;

constexpr double kTolerance = 1e-4;

class GuidedGoldenTest : public ::testing::Test {
 protected:
  // The golden stores no positions and no block list: the block golden has the same clip and sound,
  // and the reference perturbs the last block of this model.
  GuidedGoldenTest() {
    latents_.video = state_of("video");
    latents_.audio = state_of("audio");
    contexts_.positive = {golden_["denoiser.in.video_context"],
                          golden_["denoiser.in.audio_context"]};
    contexts_.negative = {golden_["denoiser.in.video_negative"],
                          golden_["denoiser.in.audio_negative"]};
  }

  diffusion::LatentState state_of(const std::string& stream) const {
    diffusion::LatentState state;
    state.latent = golden_["denoiser.in." + stream + "_latent"];
    state.denoise_mask = at::ones({1, state.latent.size(1), 1});
    state.clean = at::zeros_like(state.latent);
    state.positions = block_[stream + ".positions"].narrow(0, 0, 1);
    state.num_target_tokens = state.latent.size(1);
    return state;
  }

  diffusion::GuiderSchedule guider(double cfg) const {
    return diffusion::GuiderSchedule(
        diffusion::GuiderParams{.cfg_scale = cfg,
                                .stg_scale = 1.0,
                                .modality_scale = 3.0,
                                .rescale = 0.7,
                                .stg_blocks = {model_.config().num_layers - 1}});
  }

  test::Golden golden_{"guiders"};
  test::Golden block_{"block_ltx23"};
  transformer::Transformer model_{test::open_tiny("ltx23-dev.safetensors"), at::kFloat, at::kCPU};
  diffusion::AvLatents latents_;
  pipeline::PromptContexts contexts_;
  transformer::LocalVelocityModel local_{
      model_,
      {block_["video.positions"].narrow(0, 0, 1), block_["audio.positions"].narrow(0, 0, 1)},
      at::kFloat};
  double sigma_ = golden_["denoiser.in.sigma"].item<double>();
};

TEST_F(GuidedGoldenTest, DenoiserCallMatchesInBothOrders) {
  for (const auto order : {pipeline::PassOrder::batch, pipeline::PassOrder::sequence}) {
    pipeline::TransformerPassRunner runner(local_, contexts_, order);
    diffusion::GuidedDenoiser denoiser(runner, guider(3.0), guider(7.0));
    const auto prediction = denoiser.predict(latents_, sigma_, 0);
    EXPECT_TRUE(
        all_close(prediction.video.denoised, golden_["denoiser.video.denoised"], kTolerance));
    EXPECT_TRUE(
        all_close(prediction.audio.denoised, golden_["denoiser.audio.denoised"], kTolerance));
  }
}

TEST_F(GuidedGoldenTest, EveryPassMatches) {
  pipeline::TransformerPassRunner runner(local_, contexts_);
  diffusion::PassRequest request;
  request.passes = {PassKind::conditional, PassKind::unconditional, PassKind::perturbed,
                    PassKind::isolated};
  request.video_stg_blocks = request.audio_stg_blocks = {model_.config().num_layers - 1};
  const auto results = runner.run(request, latents_, sigma_);
  const std::vector<std::string> names = {"cond", "uncond", "ptb", "mod"};
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_TRUE(all_close(results[i].video, golden_["denoiser.video." + names[i]], kTolerance))
        << names[i];
    EXPECT_TRUE(all_close(results[i].audio, golden_["denoiser.audio." + names[i]], kTolerance))
        << names[i];
  }
}

}  // namespace
}  // namespace flotilla
