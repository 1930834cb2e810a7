// Single steps and whole loops with a toy model against the LTX-2 Python reference, commit 400fd31.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "diffusion/denoise_loop.h"
#include "diffusion/res2s_sampler.h"
#include "diffusion/stepper.h"
#include "support/compare.h"
#include "support/golden.h"
#include "toy.h"

namespace flotilla::diffusion {
namespace {

constexpr double kAtol = 1e-6;
// The noise seed of the res_2s runs.
constexpr uint64_t kRes2sSeed = 11;

Sigmas sigmas_of(const test::Golden& golden) {
  const at::Tensor values = golden["sigmas"];
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + values.numel()};
}

// Calls `check` with the step number, the interval and the expected tensor of "<prefix>.<i>".
template <typename Check>
void for_each_step(const test::Golden& golden, const std::string& prefix, Check check) {
  const Sigmas sigmas = sigmas_of(golden);
  for (size_t i = 0; i + 1 < sigmas.size(); ++i) {
    const std::string name = prefix + "." + std::to_string(i);
    const SigmaInterval interval{.from = sigmas[i], .to = sigmas[i + 1]};
    EXPECT_TRUE(test::all_close(check(interval), golden[name], kAtol)) << name;
  }
}

TEST(StepsGoldenTest, Euler) {
  const test::Golden golden("steps");
  for_each_step(golden, "euler",
                [&](SigmaInterval sigma) { return euler_step(golden["x"], golden["x0"], sigma); });
}

TEST(StepsGoldenTest, EulerInBfloat16) {
  const test::Golden golden("steps");
  const Sigmas sigmas = sigmas_of(golden);
  const std::string prefix = "euler.bf16.";
  for (const std::string& name : golden.names(prefix)) {
    const auto i = static_cast<size_t>(std::stoll(name.substr(prefix.size())));
    const at::Tensor found =
        euler_step(golden["x"].to(at::kBFloat16), golden["x0"].to(at::kBFloat16),
                   {.from = sigmas[i], .to = sigmas[i + 1]});
    EXPECT_TRUE(test::same_bytes(found, golden[name])) << name;
  }
}

TEST(StepsGoldenTest, AncestralEuler) {
  const test::Golden golden("steps");
  for_each_step(golden, "ancestral", [&](SigmaInterval sigma) {
    return ancestral_euler_step(golden["x"], golden["x0"], sigma, golden["noise"]);
  });
  for_each_step(golden, "ancestral_eta0.5", [&](SigmaInterval sigma) {
    return ancestral_euler_step(golden["x"], golden["x0"], sigma, golden["noise"], {.eta = 0.5});
  });
}

TEST(StepsGoldenTest, CfgPlusPlusEuler) {
  const test::Golden golden("steps");
  for_each_step(golden, "cfgpp", [&](SigmaInterval sigma) {
    return cfg_pp_euler_step(golden["x"], golden["x0"], golden["uncond"], sigma, golden["noise"]);
  });
}

TEST(StepsGoldenTest, Res2s) {
  const test::Golden golden("steps");
  const auto wide = [&](const char* name) { return golden[name].to(at::kDouble); };
  for_each_step(golden, "res2s", [&](SigmaInterval sigma) {
    return res2s_noise_step(wide("x"), wide("x0"), sigma, wide("noise"));
  });
}

TEST(StepsGoldenTest, Res2sWeights) {
  const test::Golden golden("steps");
  const at::Tensor hs = golden["res2s.h"];
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < hs.numel(); ++i) {
    const Res2sWeights weights = res2s_weights(hs[i].item<double>());
    rows.push_back(at::tensor({weights.a21, weights.b1, weights.b2}, at::kDouble));
  }
  EXPECT_TRUE(test::all_close(at::stack(rows), golden["res2s.a21_b1_b2"], kAtol));
}

TEST(StepsGoldenTest, Res2sNoise) {
  const test::Golden golden("steps");
  for (const std::string& name : golden.names("res2s.new_noise.seed")) {
    NoiseGenerator generator(std::stoull(name.substr(std::string("res2s.new_noise.seed").size())));
    const at::Tensor expected = golden[name];
    EXPECT_TRUE(test::all_close(draw_normalised(generator, expected.sizes()), expected, kAtol));
  }
}

TEST(StepsGoldenTest, PredictionsAreHeldToCleanTokens) {
  const test::Golden golden("steps");
  LatentState state = test::toy_state(golden["x"]);
  state.denoise_mask = golden["mask"];
  state.clean = golden["uncond"];
  EXPECT_TRUE(test::all_close(hold_clean(golden["x0"], state), golden["post_process"], kAtol));
}

std::unique_ptr<Sampler> sampler_of(const std::string& name) {
  if (name == "euler") return std::make_unique<EulerSampler>();
  if (name == "gradient_estimating") return std::make_unique<GradientEstimatingSampler>();
  return std::make_unique<Res2sSampler>(kRes2sSeed);
}

void expect_loops(const std::string& start) {
  const test::Golden golden("steps");
  const std::string prefix = "loop." + start + ".";
  AvLatents latents{.video = test::toy_state(golden[prefix + "video.latent"]),
                    .audio = test::toy_state(golden[prefix + "audio.latent"])};
  latents.video.clean = golden[prefix + "video.clean"];
  latents.video.denoise_mask = golden[prefix + "video.mask"];
  for (const std::string name : {"euler", "gradient_estimating", "res2s"}) {
    test::ToyDenoiser denoiser;
    const std::unique_ptr<Sampler> sampler = sampler_of(name);
    const DenoiseStage stage{.name = "stage_1",
                             .sigmas = sigmas_of(golden),
                             .latents = latents,
                             .denoiser = denoiser,
                             .sampler = *sampler};
    DenoiseState state = start_stage(stage, NoiseGenerator(0));
    EXPECT_EQ(run_denoise_loop(stage, state), LoopEnd::finished);
    EXPECT_TRUE(test::all_close(state.video, golden[prefix + name + ".video"], kAtol)) << name;
    EXPECT_TRUE(test::all_close(state.audio, golden[prefix + name + ".audio"], kAtol)) << name;
  }
}

TEST(StepsGoldenTest, WholeLoops) { expect_loops("plain"); }

TEST(StepsGoldenTest, WholeLoopsWithCleanAndHalfCleanTokens) { expect_loops("masked"); }

}  // namespace
}  // namespace flotilla::diffusion
