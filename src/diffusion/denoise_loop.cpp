#include "diffusion/denoise_loop.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::diffusion {
namespace {

void check_finite(const at::Tensor& tokens, std::string_view stream) {
  const int64_t bad = at::isfinite(tokens).logical_not().sum().item<int64_t>();
  if (bad == 0) return;
  fail(ErrorKind::non_finite, fmt::format("{} of {} values of the {} latents are NaN or infinite",
                                          bad, tokens.numel(), stream));
}

void check_tokens(const at::Tensor& tokens, const LatentState& state, std::string_view stream) {
  if (tokens.sizes() == state.latent.sizes()) return;
  fail(ErrorKind::input, fmt::format("the saved {} tokens have shape {}, the job needs {}", stream,
                                     shape_text(tokens.sizes()), shape_text(state.latent.sizes())));
}

// Hands a memory back and makes sure that it was one of the same kind of sampler or denoiser.
void restore_memory(Resumable& owner, const NamedTensors& memory, std::string_view what) {
  const auto names = [](const NamedTensors& tensors) {
    std::vector<std::string> keys;
    for (const auto& entry : tensors) keys.push_back(entry.first);
    return keys;
  };
  owner.restore(memory);
  const std::vector<std::string> found = names(memory);
  const std::vector<std::string> expected = names(owner.memory());
  if (found == expected) return;
  fail(ErrorKind::input,
       fmt::format("the saved state is of another {}: it holds [{}], expected [{}]", what,
                   fmt::join(found, ", "), fmt::join(expected, ", ")));
}

void check_state(const DenoiseStage& stage, const DenoiseState& state) {
  if (state.stage != stage.name || state.step > stage.num_steps()) {
    fail(ErrorKind::input,
         fmt::format("the saved state is {} after {} steps, the job runs {} with {} steps",
                     excerpt(state.stage), state.step, stage.name, stage.num_steps()));
  }
  check_tokens(state.video, stage.latents.video, "video");
  check_tokens(state.audio, stage.latents.audio, "audio");
}

DenoiseState run_step(const DenoiseStage& stage, const DenoiseState& before) {
  const AvLatents latents = latents_at(stage, before);
  const AvTokens next = stage.sampler.advance({.sigmas = stage.sigmas,
                                               .step = before.step,
                                               .latents = latents,
                                               .denoiser = stage.denoiser});
  check_finite(next.video, "video");
  check_finite(next.audio, "audio");
  return {.stage = before.stage,
          .step = before.step + 1,
          .video = next.video.to(at::kFloat),
          .audio = next.audio.to(at::kFloat),
          .generator = before.generator,
          .sampler = stage.sampler.memory(),
          .denoiser = stage.denoiser.memory()};
}

}  // namespace

AvLatents latents_at(const DenoiseStage& stage, const DenoiseState& state) {
  AvLatents latents = stage.latents;
  latents.video.latent = state.video.to(stage.latents.video.latent.options());
  latents.audio.latent = state.audio.to(stage.latents.audio.latent.options());
  return latents;
}

DenoiseState start_stage(const DenoiseStage& stage, const NoiseGenerator& generator) {
  stage.sampler.restore({});
  stage.denoiser.restore({});
  return {.stage = stage.name,
          .step = 0,
          .video = stage.latents.video.latent.to(at::kFloat),
          .audio = stage.latents.audio.latent.to(at::kFloat),
          .generator = generator.state(),
          .sampler = stage.sampler.memory(),
          .denoiser = stage.denoiser.memory()};
}

LoopEnd run_denoise_loop(const DenoiseStage& stage, DenoiseState& state,
                         const StepCallback& after_step) {
  check_sigmas(stage.sigmas);
  check_state(stage, state);
  restore_memory(stage.sampler, state.sampler, "sampler");
  restore_memory(stage.denoiser, state.denoiser, "guidance");
  const int64_t steps = stage.num_steps();
  while (state.step < steps) {
    state = with_context(fmt::format("{}, step {} of {}", stage.name, state.step + 1, steps),
                         [&] { return run_step(stage, state); });
    const SafePoint answer = after_step ? after_step(state, state.step, steps) : SafePoint::go_on;
    if (answer == SafePoint::stop && state.step < steps) return LoopEnd::stopped;
  }
  return LoopEnd::finished;
}

}  // namespace flotilla::diffusion
