// Samplers: one step of a denoise loop for video and sound together, from predictions to the
// latents at the next sigma. Order and dtypes follow ltx_pipelines/utils/samplers.py of the LTX-2
// reference: predictions are held to the clean latents, the new latents are rounded to the dtype of
// the run. Here: Euler, gradient-estimating Euler, and the ancestral ones; res2s_sampler.h has
// res_2s.
#pragma once

#include <cstdint>
#include <span>

#include "diffusion/denoiser.h"
#include "diffusion/noise.h"
#include "diffusion/stepper.h"

namespace flotilla::diffusion {

struct SamplerStep {
  std::span<const float> sigmas;  // of the whole stage
  int64_t step = 0;               // interval sigmas[step] -> sigmas[step + 1]
  const AvLatents& latents;       // at sigmas[step]
  Denoiser& denoiser;

  SigmaInterval interval() const;
};

class Sampler : public Resumable {
 public:
  // New noisy tokens of both streams, in the dtype of the latents.
  virtual AvTokens advance(const SamplerStep& step) = 0;
};

// Asks the denoiser and checks that it answers for exactly the tokens of the latents: padding of a
// parallel run must not get this far.
AvPrediction checked_prediction(Denoiser& denoiser, const AvLatents& latents, double sigma,
                                int64_t step);

// First order, deterministic: the sampler of the distilled and the two-stage pipelines.
class EulerSampler : public Sampler {
 public:
  AvTokens advance(const SamplerStep& step) override;
};

// Euler with a velocity that is extrapolated from the last two (openreview o2ND9v0CeK).
class GradientEstimatingSampler : public Sampler {
 public:
  explicit GradientEstimatingSampler(double gamma = 2.0) : gamma_(gamma) {}
  AvTokens advance(const SamplerStep& step) override;
  NamedTensors memory() const override;
  void restore(const NamedTensors& memory) override;

 private:
  at::Tensor extrapolate(const LatentState& state, const at::Tensor& denoised, double sigma,
                         at::Tensor& last_velocity) const;

  double gamma_;
  AvTokens last_velocity_;
};

enum class AncestralKind { euler, cfg_pp };

// Euler steps with fresh noise, video before audio, from a generator of their own. Its seed must
// not be the job's, or its first draw would repeat the initial noise.
class AncestralSampler : public Sampler {
 public:
  AncestralSampler(AncestralKind kind, uint64_t noise_seed, const AncestralOptions& options = {});
  AvTokens advance(const SamplerStep& step) override;
  NamedTensors memory() const override;
  void restore(const NamedTensors& memory) override;

 private:
  at::Tensor advance_stream(const LatentState& state, const StreamPrediction& prediction,
                            SigmaInterval sigma);
  bool draws_noise() const;

  AncestralKind kind_;
  uint64_t noise_seed_;
  AncestralOptions options_;
  NoiseGenerator generator_;
};

}  // namespace flotilla::diffusion
