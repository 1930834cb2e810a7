#include "diffusion/sampler.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::diffusion {
namespace {

void check_shape(const StreamPrediction& prediction, const LatentState& state,
                 std::string_view stream) {
  if (prediction.denoised.defined() && prediction.denoised.sizes() == state.latent.sizes()) return;
  const std::string found =
      prediction.denoised.defined() ? shape_text(prediction.denoised.sizes()) : "nothing";
  fail(ErrorKind::internal, fmt::format("the {} prediction is {}, the latents are {}", stream,
                                        found, shape_text(state.latent.sizes())));
}

}  // namespace

SigmaInterval SamplerStep::interval() const {
  const auto i = static_cast<size_t>(step);
  FLOTILLA_ASSERT(i + 1 < sigmas.size());
  return {.from = sigmas[i], .to = sigmas[i + 1]};
}

AvPrediction checked_prediction(Denoiser& denoiser, const AvLatents& latents, double sigma,
                                int64_t step) {
  AvPrediction prediction = denoiser.predict(latents, sigma, step);
  check_shape(prediction.video, latents.video, "video");
  check_shape(prediction.audio, latents.audio, "audio");
  return prediction;
}

AvTokens EulerSampler::advance(const SamplerStep& step) {
  const SigmaInterval sigma = step.interval();
  const AvPrediction x0 = checked_prediction(step.denoiser, step.latents, sigma.from, step.step);
  const auto advance_stream = [&](const LatentState& state, const StreamPrediction& prediction) {
    return euler_step(state.latent, hold_clean(prediction.denoised, state), sigma);
  };
  return {.video = advance_stream(step.latents.video, x0.video),
          .audio = advance_stream(step.latents.audio, x0.audio)};
}

AvTokens GradientEstimatingSampler::advance(const SamplerStep& step) {
  const SigmaInterval sigma = step.interval();
  const AvPrediction x0 = checked_prediction(step.denoiser, step.latents, sigma.from, step.step);
  const auto advance_stream = [&](const LatentState& state, const StreamPrediction& prediction,
                                  at::Tensor& last_velocity) {
    const at::Tensor held = hold_clean(prediction.denoised, state);
    if (sigma.to == 0.0) return held.to(state.latent.scalar_type());
    const at::Tensor target = extrapolate(state, held, sigma.from, last_velocity);
    return euler_step(state.latent, target, sigma);
  };
  AvTokens next;
  next.video = advance_stream(step.latents.video, x0.video, last_velocity_.video);
  next.audio = advance_stream(step.latents.audio, x0.audio, last_velocity_.audio);
  return next;
}

at::Tensor GradientEstimatingSampler::extrapolate(const LatentState& state,
                                                  const at::Tensor& denoised, double sigma,
                                                  at::Tensor& last_velocity) const {
  const at::Tensor velocity = to_velocity(state.latent, denoised, sigma);
  at::Tensor target = denoised;
  if (last_velocity.defined()) {
    const at::Tensor last = last_velocity.to(velocity.options());
    target = to_denoised(state.latent, (velocity - last) * gamma_ + last, sigma);
  }
  last_velocity = velocity;
  return target;
}

NamedTensors GradientEstimatingSampler::memory() const {
  NamedTensors memory;
  if (last_velocity_.video.defined()) memory["video_velocity"] = last_velocity_.video;
  if (last_velocity_.audio.defined()) memory["audio_velocity"] = last_velocity_.audio;
  return memory;
}

void GradientEstimatingSampler::restore(const NamedTensors& memory) {
  last_velocity_ = {.video = recall(memory, "video_velocity"),
                    .audio = recall(memory, "audio_velocity")};
}

AncestralSampler::AncestralSampler(AncestralKind kind, uint64_t noise_seed,
                                   const AncestralOptions& options)
    : kind_(kind), noise_seed_(noise_seed), options_(options), generator_(noise_seed) {}

bool AncestralSampler::draws_noise() const {
  // Without a noise scale the ancestral Euler step still shrinks the sample, so it keeps its draws.
  return options_.eta > 0.0 && (kind_ == AncestralKind::euler || options_.noise_scale > 0.0);
}

AvTokens AncestralSampler::advance(const SamplerStep& step) {
  const SigmaInterval sigma = step.interval();
  const AvPrediction x0 = checked_prediction(step.denoiser, step.latents, sigma.from, step.step);
  AvTokens next;
  next.video = advance_stream(step.latents.video, x0.video, sigma);
  next.audio = advance_stream(step.latents.audio, x0.audio, sigma);
  return next;
}

at::Tensor AncestralSampler::advance_stream(const LatentState& state,
                                            const StreamPrediction& prediction,
                                            SigmaInterval sigma) {
  const at::ScalarType dtype = state.latent.scalar_type();
  if (kind_ == AncestralKind::cfg_pp && !prediction.uncond.defined()) {
    fail(ErrorKind::config,
         "the CFG++ sampler needs the unconditional prediction of both streams at every step; "
         "set skip_step to 0");
  }
  const at::Tensor held = hold_clean(prediction.denoised.to(at::kFloat), state);
  if (sigma.to == 0.0) return held.to(dtype);

  at::Tensor noise;
  if (draws_noise()) {
    noise = generator_.draw(state.latent.sizes(), dtype).to(state.latent.device());
  }
  const at::Tensor sample = state.latent.to(at::kFloat);
  at::Tensor next =
      kind_ == AncestralKind::euler
          ? ancestral_euler_step(sample, held, sigma, noise, options_)
          : cfg_pp_euler_step(sample, held, prediction.uncond, sigma, noise, options_);
  // The fresh noise went to all tokens, also to those that must stay clean.
  if (noise.defined()) next = hold_clean(next, state);
  return next.to(dtype);
}

NamedTensors AncestralSampler::memory() const { return {{"generator", generator_.state()}}; }

void AncestralSampler::restore(const NamedTensors& memory) {
  const at::Tensor state = recall(memory, "generator");
  if (state.defined()) {
    generator_.restore(state);
  } else {
    generator_ = NoiseGenerator(noise_seed_);
  }
}

}  // namespace flotilla::diffusion
