// Loops that stop and go on, states that do not fit, numbers that are not finite.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "base/error.h"
#include "diffusion/denoise_loop.h"
#include "diffusion/guided_denoiser.h"
#include "diffusion/res2s_sampler.h"
#include "support/compare.h"
#include "toy.h"

namespace flotilla::diffusion {
namespace {

const Sigmas kSigmas = {1.0f, 0.9f, 0.7f, 0.4f, 0.0f};

// Noised latents whose first video tokens are held, fully and partly.
AvLatents noised_latents(NoiseGenerator& generator, at::ScalarType dtype) {
  AvLatents latents{.video = test::toy_state(at::zeros({1, 8, 6}, dtype)),
                    .audio = test::toy_state(at::zeros({1, 3, 6}, dtype))};
  latents.video.clean = at::ones_like(latents.video.latent);
  latents.video.denoise_mask.slice(1, 0, 2).fill_(0.0);
  latents.video.denoise_mask.slice(1, 2, 4).fill_(0.4);
  return add_noise(latents, generator, 1.0);
}

// One pass runner with guidance that skips every second step.
class TwoPasses : public PassRunner {
 public:
  std::vector<AvTokens> run(const PassRequest& request, const AvLatents& latents,
                            double sigma) override {
    const AvTokens tokens{.video = test::toy_prediction(latents.video.latent, sigma),
                          .audio = test::toy_prediction(latents.audio.latent, sigma)};
    std::vector<AvTokens> results(request.passes.size(), tokens);
    if (results.size() > 1) results[1] = {.video = tokens.video * 0.3, .audio = tokens.audio * 0.3};
    return results;
  }
};

struct LoopCase {
  std::string name;
  std::function<std::unique_ptr<Sampler>()> sampler;
  int64_t skip_step = 1;  // of the video's guider; the audio's skips one more
};

std::vector<LoopCase> loop_cases() {
  return {
      {"euler", [] { return std::make_unique<EulerSampler>(); }},
      {"gradient", [] { return std::make_unique<GradientEstimatingSampler>(); }},
      {"ancestral", [] { return std::make_unique<AncestralSampler>(AncestralKind::euler, 7); }},
      {"cfg_pp", [] { return std::make_unique<AncestralSampler>(AncestralKind::cfg_pp, 7); }, 0},
      {"res2s", [] { return std::make_unique<Res2sSampler>(7); }}};
}

// Runs a stage as several processes would: each part has its own sampler and denoiser and gets only
// what the one before stored.
DenoiseState run_in_parts(const LoopCase& loop, at::ScalarType dtype, int64_t steps_per_part) {
  NoiseGenerator generator(42);
  const AvLatents latents = noised_latents(generator, dtype);
  NamedTensors stored;
  for (int part = 0;; ++part) {
    TwoPasses passes;
    const int64_t audio_skip = loop.skip_step > 0 ? loop.skip_step + 1 : 0;
    GuidedDenoiser denoiser(
        passes, GuiderSchedule(GuiderParams{.cfg_scale = 3.0, .skip_step = loop.skip_step}),
        GuiderSchedule(GuiderParams{.rescale = 0.7, .skip_step = audio_skip}), true);
    const std::unique_ptr<Sampler> sampler = loop.sampler();
    const DenoiseStage stage{.name = "stage_1",
                             .sigmas = kSigmas,
                             .latents = latents,
                             .denoiser = denoiser,
                             .sampler = *sampler};
    DenoiseState state = part == 0 ? start_stage(stage, generator) : state_from_tensors(stored);
    int64_t left = steps_per_part;
    const LoopEnd end = run_denoise_loop(stage, state, [&](const DenoiseState&, int64_t, int64_t) {
      return --left == 0 ? SafePoint::stop : SafePoint::go_on;
    });
    if (end == LoopEnd::finished) return state;
    stored = to_tensors(state);
  }
}

void expect_same_at_every_border(at::ScalarType dtype) {
  for (const LoopCase& loop : loop_cases()) {
    const DenoiseState whole = run_in_parts(loop, dtype, 100);
    EXPECT_EQ(whole.step, 4) << loop.name;
    for (const int64_t steps_per_part : {1, 2, 3}) {
      const DenoiseState parts = run_in_parts(loop, dtype, steps_per_part);
      EXPECT_TRUE(test::same_bytes(parts.video, whole.video)) << loop.name;
      EXPECT_TRUE(test::same_bytes(parts.audio, whole.audio)) << loop.name;
      EXPECT_TRUE(test::same_bytes(parts.generator, whole.generator)) << loop.name;
    }
  }
}

TEST(DenoiseLoopTest, InterruptedLoopEqualsWholeLoop) { expect_same_at_every_border(at::kFloat); }

TEST(DenoiseLoopTest, InterruptedLoopEqualsWholeLoopInBfloat16) {
  expect_same_at_every_border(at::kBFloat16);
}

TEST(DenoiseLoopTest, HeldTokensEndClean) {
  for (const LoopCase& loop : loop_cases()) {
    const DenoiseState state = run_in_parts(loop, at::kFloat, 100);
    EXPECT_TRUE(state.video.slice(1, 0, 2).eq(1.0).all().item<bool>()) << loop.name;
    EXPECT_FALSE(state.video.slice(1, 4).eq(1.0).any().item<bool>()) << loop.name;
  }
}

// A plain stage for the cases below.
struct PlainStage {
  explicit PlainStage(Denoiser& denoiser)
      : stage{.name = "stage_2",
              .sigmas = kSigmas,
              .latents = noised_latents(generator, at::kFloat),
              .denoiser = denoiser,
              .sampler = sampler} {}
  NoiseGenerator generator{1};
  EulerSampler sampler;
  DenoiseStage stage;
};

TEST(DenoiseLoopTest, CallbackSeesEveryStep) {
  test::ToyDenoiser denoiser;
  PlainStage plain(denoiser);
  DenoiseState state = start_stage(plain.stage, plain.generator);
  std::vector<int64_t> seen;
  const LoopEnd end = run_denoise_loop(plain.stage, state,
                                       [&](const DenoiseState& now, int64_t step, int64_t steps) {
                                         EXPECT_EQ(now.step, step);
                                         EXPECT_EQ(steps, 4);
                                         seen.push_back(step);
                                         return step == steps ? SafePoint::stop : SafePoint::go_on;
                                       });
  EXPECT_EQ(end, LoopEnd::finished);  // nothing was left to stop
  EXPECT_EQ(seen, (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(denoiser.num_calls, 4);
}

class FailingDenoiser : public test::ToyDenoiser {
 public:
  AvPrediction predict(const AvLatents& latents, double sigma, int64_t step) override {
    AvPrediction prediction = test::ToyDenoiser::predict(latents, sigma, step);
    if (step == 2) spoil(prediction);
    return prediction;
  }
  std::function<void(AvPrediction&)> spoil;
};

std::string failure_of(FailingDenoiser& denoiser, ErrorKind kind) {
  PlainStage plain(denoiser);
  DenoiseState state = start_stage(plain.stage, plain.generator);
  DenoiseState last_good;
  try {
    run_denoise_loop(plain.stage, state, [&](const DenoiseState& now, int64_t, int64_t) {
      last_good = now;
      return SafePoint::go_on;
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_EQ(state.step, 2);
    EXPECT_TRUE(test::same_bytes(state.video, last_good.video));
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(DenoiseLoopTest, NonFiniteLatentsNameStageStepAndStream) {
  FailingDenoiser denoiser;
  denoiser.spoil = [](AvPrediction& prediction) {
    prediction.audio.denoised[0][1][2] = std::numeric_limits<float>::quiet_NaN();
  };
  const std::string message = failure_of(denoiser, ErrorKind::non_finite);
  EXPECT_NE(message.find("stage_2, step 3 of 4"), std::string::npos) << message;
  EXPECT_NE(message.find("1 of 18 values of the audio latents"), std::string::npos) << message;
}

TEST(DenoiseLoopTest, PaddedPredictionsAreRefused) {
  FailingDenoiser denoiser;
  denoiser.spoil = [](AvPrediction& prediction) {
    prediction.video.denoised = at::constant_pad_nd(prediction.video.denoised, {0, 0, 0, 1});
  };
  EXPECT_NE(failure_of(denoiser, ErrorKind::internal).find("video prediction"), std::string::npos);
}

TEST(DenoiseLoopTest, StatesOfOtherJobsAreRefused) {
  test::ToyDenoiser denoiser;
  PlainStage plain(denoiser);
  const DenoiseState good = start_stage(plain.stage, plain.generator);
  const auto expect_refused = [&](const std::function<void(DenoiseState&)>& change) {
    DenoiseState state = good;
    change(state);
    EXPECT_THROW(run_denoise_loop(plain.stage, state), Error);
  };
  expect_refused([](DenoiseState& state) { state.stage = "stage_1"; });
  expect_refused([](DenoiseState& state) { state.step = 5; });
  expect_refused([](DenoiseState& state) { state.video = at::zeros({1, 9, 6}); });
  expect_refused([](DenoiseState& state) { state.audio = at::zeros({1, 3, 7}); });
  expect_refused([](DenoiseState& state) { state.sampler["generator"] = state.generator; });
  expect_refused([](DenoiseState& state) { state.denoiser["video"] = state.video; });
}

TEST(DenoiseLoopTest, CfgPlusPlusNeedsTheUnconditionalPrediction) {
  class NoUncond : public test::ToyDenoiser {
    AvPrediction predict(const AvLatents& latents, double sigma, int64_t step) override {
      AvPrediction prediction = test::ToyDenoiser::predict(latents, sigma, step);
      prediction.audio.uncond.reset();
      return prediction;
    }
  };
  NoUncond denoiser;
  PlainStage plain(denoiser);
  AncestralSampler sampler(AncestralKind::cfg_pp, 1);
  const DenoiseStage stage{.name = "stage_1",
                           .sigmas = kSigmas,
                           .latents = plain.stage.latents,
                           .denoiser = denoiser,
                           .sampler = sampler};
  DenoiseState state = start_stage(stage, plain.generator);
  EXPECT_THROW(run_denoise_loop(stage, state), Error);
}

TEST(AncestralSamplerTest, WithoutFreshNoiseItIsEuler) {
  const LoopCase ancestral = {"ancestral", [] {
                                return std::make_unique<AncestralSampler>(
                                    AncestralKind::euler, 7, AncestralOptions{.eta = 0.0});
                              }};
  const DenoiseState expected = run_in_parts(loop_cases().front(), at::kFloat, 100);
  const DenoiseState found = run_in_parts(ancestral, at::kFloat, 100);
  EXPECT_TRUE(test::all_close(found.video, expected.video, 1e-5));
}

TEST(AncestralSamplerTest, DrawsVideoBeforeAudio) {
  test::ToyDenoiser denoiser;
  PlainStage plain(denoiser);
  AncestralSampler sampler(AncestralKind::euler, 9);
  const AvLatents& latents = plain.stage.latents;
  const SamplerStep step{.sigmas = kSigmas, .step = 0, .latents = latents, .denoiser = denoiser};
  const AvTokens found = sampler.advance(step);
  NoiseGenerator generator(9);
  generator.draw(latents.video.latent.sizes(), at::kFloat);
  const at::Tensor noise = generator.draw(latents.audio.latent.sizes(), at::kFloat);
  const at::Tensor x0 = test::toy_prediction(latents.audio.latent, kSigmas[0]);
  const at::Tensor expected =
      ancestral_euler_step(latents.audio.latent, x0, step.interval(), noise);
  EXPECT_TRUE(test::all_close(found.audio, expected, 1e-6));
}

TEST(DenoiseStateTest, DamagedStatesAreRefused) {
  test::ToyDenoiser denoiser;
  PlainStage plain(denoiser);
  const NamedTensors good = to_tensors(start_stage(plain.stage, plain.generator));
  EXPECT_EQ(state_from_tensors(good).stage, "stage_2");
  const auto expect_refused = [&](const std::string& name, const at::Tensor& tensor) {
    NamedTensors tensors = good;
    if (tensor.defined()) {
      tensors[name] = tensor;
    } else {
      tensors.erase(name);
    }
    EXPECT_THROW(state_from_tensors(tensors), Error) << name;
  };
  for (const char* name : {"stage", "step", "video", "audio", "generator"}) {
    expect_refused(name, {});
  }
  expect_refused("stage", at::empty({0}, at::kByte));
  expect_refused("stage", at::full({3}, 0xff, at::kByte));
  expect_refused("stage", at::full({100}, 'a', at::kByte));
  expect_refused("step", at::scalar_tensor(-1, at::kLong));
  expect_refused("step", at::scalar_tensor(1.0));
  expect_refused("video", at::zeros({1, 8}));
  expect_refused("audio", at::zeros({1, 3, 6}, at::kDouble));
  expect_refused("something", at::zeros({1}));
}

TEST(DenoiseStateTest, StoredTensorsDoNotChangeWithTheRun) {
  test::ToyDenoiser denoiser;
  PlainStage plain(denoiser);
  const DenoiseState state = start_stage(plain.stage, plain.generator);
  const NamedTensors stored = to_tensors(state);
  EXPECT_FALSE(stored.at("video").is_alias_of(state.video));
}

TEST(NoiseGeneratorTest, ContinuesFromASavedState) {
  // An odd count leaves half of a pair of normal numbers in the state.
  NoiseGenerator generator(0);
  generator.draw({7}, at::kFloat);
  const at::Tensor state = generator.state();
  const at::Tensor expected = generator.draw({9}, at::kFloat);
  NoiseGenerator other(1);
  other.restore(state);
  EXPECT_TRUE(test::same_bytes(other.draw({9}, at::kFloat), expected));
}

TEST(NoiseGeneratorTest, ForeignStatesAreRefused) {
  NoiseGenerator generator(0);
  EXPECT_THROW(generator.restore(at::zeros({5}, at::kByte)), Error);
  EXPECT_THROW(generator.restore(at::zeros({5056}, at::kFloat)), Error);
}

TEST(NoiseGeneratorTest, SeedsGiveTheirOwnNumbers) {
  const auto draw = [](uint64_t seed) { return NoiseGenerator(seed).draw({16}, at::kFloat); };
  EXPECT_TRUE(test::same_bytes(draw(0), draw(0)));
  EXPECT_FALSE(draw(0).equal(draw(1)));
  EXPECT_FALSE(draw(0).equal(draw((uint64_t{1} << 63) - 1)));
}

TEST(NoiseGeneratorTest, Bfloat16IsDrawnNotRounded) {
  const at::Tensor drawn = NoiseGenerator(5).draw({64}, at::kBFloat16);
  const at::Tensor rounded = NoiseGenerator(5).draw({64}, at::kFloat).to(at::kBFloat16);
  EXPECT_FALSE(drawn.equal(rounded));
}

}  // namespace
}  // namespace flotilla::diffusion
