// Guidance formulas, and the guidance of a whole denoiser call on the stored predictions of its
// passes, against the LTX-2 Python reference, commit 400fd31.
#include <gtest/gtest.h>

#include <string>

#include "diffusion/guided_denoiser.h"
#include "diffusion/guider.h"
#include "support/compare.h"
#include "support/golden.h"
#include "toy.h"

namespace flotilla::diffusion {
namespace {

constexpr double kAtol = 1e-4;

TEST(GuiderGoldenTest, MultiModalCombinations) {
  const test::Golden golden("guiders");
  const PassPredictions predictions{.cond = golden["cond"],
                                    .uncond = golden["uncond"],
                                    .perturbed = golden["ptb"],
                                    .isolated = golden["mod"]};
  int num_cases = 0;
  for (const std::string& name : golden.names("mm.")) {
    if (!name.ends_with(".out")) continue;
    ++num_cases;
    const at::Tensor values =
        golden[name.substr(0, name.size() - 4) + ".params_cfg_stg_mod_rescale"].to(at::kDouble);
    const GuiderParams params{.cfg_scale = values[0].item<double>(),
                              .stg_scale = values[1].item<double>(),
                              .modality_scale = values[2].item<double>(),
                              .rescale = values[3].item<double>()};
    EXPECT_TRUE(test::all_close(guide(params, predictions), golden[name], kAtol)) << name;
  }
  EXPECT_GT(num_cases, 0);
}

TEST(GuiderGoldenTest, SmallGuiders) {
  const test::Golden golden("guiders");
  const at::Tensor cond = golden["cond"];
  const at::Tensor uncond = golden["uncond"];
  EXPECT_TRUE(test::all_close(cfg_delta(cond, uncond, 3.0), golden["cfg.delta"], kAtol));
  EXPECT_TRUE(test::all_close(cfg_star_delta(cond, uncond, 3.0), golden["cfg_star.delta"], kAtol));
  EXPECT_TRUE(test::all_close(stg_delta(cond, golden["ptb"], 1.0), golden["stg.delta"], kAtol));
  const ApgOptions options{.scale = 3.0, .eta = 0.5, .norm_threshold = 2.0};
  EXPECT_TRUE(test::all_close(apg_delta(cond, uncond, options), golden["apg.delta"], kAtol));
}

TEST(GuiderGoldenTest, ParamsBySigma) {
  const test::Golden golden("guiders");
  const GuiderSchedule schedule({{0.4, GuiderParams{.cfg_scale = 1.5}},
                                 {1.0, GuiderParams{.cfg_scale = 5.0}},
                                 {0.9, GuiderParams{.cfg_scale = 3.0}}});
  const at::Tensor sigmas = golden["factory.sigmas"];
  const at::Tensor expected = golden["factory.cfg"];
  for (int64_t i = 0; i < sigmas.numel(); ++i) {
    const double sigma = sigmas[i].item<double>();
    EXPECT_EQ(schedule.at(sigma).cfg_scale, expected[i].item<double>()) << sigma;
  }
}

TEST(GuiderGoldenTest, SkippedSteps) {
  const at::Tensor table = test::Golden("guiders")["skip_step.table"];
  for (int64_t skip = 0; skip < table.size(0); ++skip) {
    for (int64_t step = 0; step < table.size(1); ++step) {
      EXPECT_EQ(GuiderParams{.skip_step = skip}.skips(step), table[skip][step].item<bool>())
          << skip << " " << step;
    }
  }
}

// Answers with the predictions that the reference's transformer made.
class StoredPasses : public PassRunner {
 public:
  explicit StoredPasses(const test::Golden& golden) : golden_(golden) {}
  std::vector<AvTokens> run(const PassRequest& request, const AvLatents&, double) override {
    std::vector<AvTokens> results;
    for (const PassKind pass : request.passes) {
      const std::string name = names_.at(pass);
      results.push_back(
          {.video = golden_["denoiser.video." + name], .audio = golden_["denoiser.audio." + name]});
    }
    return results;
  }

 private:
  const test::Golden& golden_;
  const std::map<PassKind, std::string> names_ = {{PassKind::conditional, "cond"},
                                                  {PassKind::unconditional, "uncond"},
                                                  {PassKind::perturbed, "ptb"},
                                                  {PassKind::isolated, "mod"}};
};

TEST(GuiderGoldenTest, GuidanceOfADenoiserCall) {
  const test::Golden golden("guiders");
  const auto params = [](double cfg) {
    return GuiderParams{.cfg_scale = cfg, .stg_scale = 1.0, .modality_scale = 3.0, .rescale = 0.7};
  };
  StoredPasses passes(golden);
  GuidedDenoiser denoiser(passes, GuiderSchedule(params(3.0)), GuiderSchedule(params(7.0)));
  const AvLatents latents{.video = test::toy_state(golden["denoiser.in.video_latent"]),
                          .audio = test::toy_state(golden["denoiser.in.audio_latent"])};
  const AvPrediction found =
      denoiser.predict(latents, golden["denoiser.in.sigma"].item<double>(), 0);
  EXPECT_TRUE(test::all_close(found.video.denoised, golden["denoiser.video.denoised"], kAtol));
  EXPECT_TRUE(test::all_close(found.audio.denoised, golden["denoiser.audio.denoised"], kAtol));
}

}  // namespace
}  // namespace flotilla::diffusion
