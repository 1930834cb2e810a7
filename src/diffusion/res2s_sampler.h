// The res_2s sampler: a second-order exponential step with two predictions, fresh noise at the
// midpoint and at the end, and a refinement of the starting point on short steps. State between
// predictions is float64. Source: res2s loop of ltx_pipelines/utils/samplers.py (LTX-2 reference).
#pragma once

#include <cstdint>

#include "diffusion/sampler.h"

namespace flotilla::diffusion {

struct Res2sOptions {
  double eta = 0.5;    // share of fresh noise at the end of a step
  bool refine = true;  // refine the starting point where the step is short
  int64_t refinements = 100;
};

class Res2sSampler : public Sampler {
 public:
  // Draws come from generators of its own, video before audio: `noise_seed` at the end of steps,
  // `noise_seed` + 10000 at midpoints.
  explicit Res2sSampler(uint64_t noise_seed, const Res2sOptions& options = {});
  AvTokens advance(const SamplerStep& step) override;
  NamedTensors memory() const override;
  void restore(const NamedTensors& memory) override;

 private:
  uint64_t noise_seed_;
  Res2sOptions options_;
  NoiseGenerator step_noise_;
  NoiseGenerator midpoint_noise_;
};

// float64 noise with mean 0 and standard deviation 1 in each batch entry, on the CPU.
at::Tensor draw_normalised(NoiseGenerator& generator, at::IntArrayRef shape);

}  // namespace flotilla::diffusion
