// One step over a sigma interval, as pure functions of tensors: from a noisy sample and its x0
// prediction to the sample at the next sigma. Flow matching: sample = (1 - sigma) x0 + sigma noise,
// velocity = noise - x0. Formulas: ltx_core/components/diffusion_steps.py and
// ltx_pipelines/utils/res2s.py of the LTX-2 reference. The arithmetic is float32 (res_2s: that of
// the sample), the result has the dtype of the sample. Next: sampler.h (whole steps of both
// streams).
#pragma once

#include <ATen/ATen.h>

namespace flotilla::diffusion {

// x0 = sample - velocity * sigma. The tensor form takes token timesteps [B, T, 1].
at::Tensor to_denoised(const at::Tensor& sample, const at::Tensor& velocity, double sigma);
at::Tensor to_denoised(const at::Tensor& sample, const at::Tensor& velocity,
                       const at::Tensor& timesteps);
// velocity = (sample - x0) / sigma. `sigma` must not be 0.
at::Tensor to_velocity(const at::Tensor& sample, const at::Tensor& denoised, double sigma);

struct SigmaInterval {
  double from = 0.0;
  double to = 0.0;
};

// First-order step along the velocity.
at::Tensor euler_step(const at::Tensor& sample, const at::Tensor& denoised, SigmaInterval sigma);

struct AncestralOptions {
  double eta = 1.0;          // 0: a plain Euler step, 1: as much fresh noise as fits
  double noise_scale = 1.0;  // factor on the fresh noise
};

// Euler step to a sigma below the next one, then fresh noise up to the next one, in the
// rectified-flow parameterisation. `noise` may be undefined when eta is 0. `sigma.to` 0 returns x0.
at::Tensor ancestral_euler_step(const at::Tensor& sample, const at::Tensor& denoised,
                                SigmaInterval sigma, const at::Tensor& noise,
                                const AncestralOptions& options = {});

// CFG++ (arXiv 2406.08070): towards `denoised`, along the direction of the unconditional prediction
// `uncond`; fresh noise in sigma / (1 - sigma). `noise` undefined: none is added.
at::Tensor cfg_pp_euler_step(const at::Tensor& sample, const at::Tensor& denoised,
                             const at::Tensor& uncond, SigmaInterval sigma, const at::Tensor& noise,
                             const AncestralOptions& options = {});

// Weights of the two evaluations of a second-order exponential step over h = log(from / to).
struct Res2sWeights {
  double a21 = 0.0;  // first evaluation, in the midpoint
  double b1 = 0.0;   // first evaluation, in the result
  double b2 = 0.0;   // second evaluation, in the result
};
Res2sWeights res2s_weights(double h, double midpoint = 0.5);

// Replaces part of the noise in a res_2s result with fresh noise, so that the level stays
// `sigma.to`. `target` is the deterministic result. Returns `target` when `sigma.to` or `eta` is 0.
at::Tensor res2s_noise_step(const at::Tensor& sample, const at::Tensor& target, SigmaInterval sigma,
                            const at::Tensor& noise, double eta = 0.5);

}  // namespace flotilla::diffusion
