#include "diffusion/res2s_sampler.h"

#include <array>
#include <cmath>

namespace flotilla::diffusion {
namespace {

constexpr uint64_t kMidpointSeedOffset = 10000;
constexpr double kMidpointEta = 0.5;
// A step to sigma 0 would be infinitely long: it goes here, and one more prediction ends it.
constexpr float kSmallestSigma = 0.0011f;
// Refinement helps only on short steps away from the end.
constexpr double kLongestRefinedStep = 0.5;
constexpr double kSmallestRefinedSigma = 0.03;

// One stream inside a step; float64, [B, T, D].
struct Res2sStream {
  const LatentState& state;
  at::Tensor anchor;  // where the step starts
  at::Tensor first;   // x0 predicted there
  at::Tensor slope;   // first - anchor
  at::Tensor midpoint;
};

Res2sStream start_stream(const LatentState& state, const StreamPrediction& prediction) {
  const at::Tensor anchor = state.latent.to(at::kDouble);
  const at::Tensor first = hold_clean(prediction.denoised, state).to(at::kDouble);
  return {state, anchor, first, first - anchor, {}};
}

at::Tensor add_fresh_noise(const Res2sStream& stream, const at::Tensor& target, SigmaInterval sigma,
                           NoiseGenerator& generator, double eta) {
  const at::Tensor noise =
      draw_normalised(generator, stream.anchor.sizes()).to(stream.anchor.device());
  return hold_clean(res2s_noise_step(stream.anchor, target, sigma, noise, eta), stream.state);
}

void refine_anchor(Res2sStream& stream, double first_weight, int64_t iterations) {
  for (int64_t i = 0; i < iterations; ++i) {
    stream.anchor = stream.midpoint - stream.slope * first_weight;
    stream.slope = stream.first - stream.anchor;
  }
}

AvLatents with_latents(const AvLatents& latents, const at::Tensor& video, const at::Tensor& audio) {
  AvLatents moved = latents;
  moved.video.latent = video.to(latents.video.latent.scalar_type());
  moved.audio.latent = audio.to(latents.audio.latent.scalar_type());
  return moved;
}

}  // namespace

at::Tensor draw_normalised(NoiseGenerator& generator, at::IntArrayRef shape) {
  at::Tensor noise = generator.draw(shape, at::kDouble);
  noise = (noise - noise.mean()) / noise.std();
  const at::Tensor centred = noise - noise.mean({-2, -1}, /*keepdim=*/true);
  return centred / centred.std(at::IntArrayRef{-2, -1}, /*unbiased=*/true, /*keepdim=*/true);
}

Res2sSampler::Res2sSampler(uint64_t noise_seed, const Res2sOptions& options)
    : noise_seed_(noise_seed),
      options_(options),
      step_noise_(noise_seed),
      midpoint_noise_(noise_seed + kMidpointSeedOffset) {}

AvTokens Res2sSampler::advance(const SamplerStep& step) {
  const bool ends_at_zero = step.interval().to == 0.0;
  const SigmaInterval sigma{.from = step.interval().from,
                            .to = ends_at_zero ? kSmallestSigma : step.interval().to};
  const double h = -std::log(sigma.to / sigma.from);
  const Res2sWeights weights = res2s_weights(h);
  const SigmaInterval half{.from = sigma.from, .to = std::sqrt(sigma.from * sigma.to)};

  // First prediction, midpoint with fresh noise.
  const AvPrediction first = checked_prediction(step.denoiser, step.latents, sigma.from, step.step);
  std::array<Res2sStream, 2> streams = {start_stream(step.latents.video, first.video),
                                        start_stream(step.latents.audio, first.audio)};
  for (Res2sStream& stream : streams) {
    const at::Tensor target = stream.anchor + stream.slope * (h * weights.a21);
    stream.midpoint = add_fresh_noise(stream, target, half, midpoint_noise_, kMidpointEta);
  }
  if (options_.refine && h < kLongestRefinedStep && sigma.from > kSmallestRefinedSigma) {
    for (Res2sStream& stream : streams) {
      refine_anchor(stream, h * weights.a21, options_.refinements);
    }
  }

  // Second prediction, always guided (index 0), and the end of the step with fresh noise.
  const AvLatents middle = with_latents(step.latents, streams[0].midpoint, streams[1].midpoint);
  const AvPrediction second = checked_prediction(step.denoiser, middle, half.to, 0);
  std::array<at::Tensor, 2> next;
  for (size_t i = 0; i < streams.size(); ++i) {
    const Res2sStream& stream = streams[i];
    const StreamPrediction& prediction = i == 0 ? second.video : second.audio;
    const at::Tensor second_slope = hold_clean(prediction.denoised, stream.state) - stream.anchor;
    const at::Tensor target =
        stream.anchor + (stream.slope * weights.b1 + second_slope * weights.b2) * h;
    next[i] = add_fresh_noise(stream, target, sigma, step_noise_, options_.eta);
  }
  const AvLatents end = with_latents(step.latents, next[0], next[1]);
  if (!ends_at_zero) return {.video = end.video.latent, .audio = end.audio.latent};

  // What noise is left at the smallest sigma, one more prediction takes away.
  const AvPrediction last = checked_prediction(step.denoiser, end, kSmallestSigma, step.step + 1);
  return {.video = hold_clean(last.video.denoised, end.video).to(end.video.latent.scalar_type()),
          .audio = hold_clean(last.audio.denoised, end.audio).to(end.audio.latent.scalar_type())};
}

NamedTensors Res2sSampler::memory() const {
  return {{"step_generator", step_noise_.state()}, {"midpoint_generator", midpoint_noise_.state()}};
}

void Res2sSampler::restore(const NamedTensors& memory) {
  step_noise_ = NoiseGenerator(noise_seed_);
  midpoint_noise_ = NoiseGenerator(noise_seed_ + kMidpointSeedOffset);
  const at::Tensor step_state = recall(memory, "step_generator");
  const at::Tensor midpoint_state = recall(memory, "midpoint_generator");
  if (step_state.defined()) step_noise_.restore(step_state);
  if (midpoint_state.defined()) midpoint_noise_.restore(midpoint_state);
}

}  // namespace flotilla::diffusion
