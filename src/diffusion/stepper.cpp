// The coefficients of the ancestral steps are computed in float like the reference's scalars: near
// sigma 1 they are differences of nearly equal numbers, so that double would give other steps.
#include "diffusion/stepper.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace flotilla::diffusion {
namespace {

struct AncestralSplit {
  float down = 0.0f;  // sigma after the deterministic part
  float up = 0.0f;    // standard deviation of the fresh noise
};

// DDIM split of a step in sigma / alpha.
AncestralSplit split_ancestral(float from, float to, float eta) {
  if (eta == 0.0f) return {to, 0.0f};
  const float from_squared = from * from;
  const float to_squared = to * to;
  const float variance = to_squared * std::max(from_squared - to_squared, 0.0f) / from_squared;
  const float up = std::min(eta * std::sqrt(variance), to);
  return {std::sqrt(std::max(to_squared - up * up, 0.0f)), up};
}

}  // namespace

at::Tensor to_denoised(const at::Tensor& sample, const at::Tensor& velocity, double sigma) {
  return (sample.to(at::kFloat) - velocity.to(at::kFloat) * sigma).to(sample.scalar_type());
}

at::Tensor to_denoised(const at::Tensor& sample, const at::Tensor& velocity,
                       const at::Tensor& timesteps) {
  const at::Tensor step = velocity.to(at::kFloat) * timesteps.to(at::kFloat);
  return (sample.to(at::kFloat) - step).to(sample.scalar_type());
}

at::Tensor to_velocity(const at::Tensor& sample, const at::Tensor& denoised, double sigma) {
  FLOTILLA_ASSERT(sigma != 0.0);
  return ((sample.to(at::kFloat) - denoised.to(at::kFloat)) / sigma).to(sample.scalar_type());
}

at::Tensor euler_step(const at::Tensor& sample, const at::Tensor& denoised, SigmaInterval sigma) {
  const float step = static_cast<float>(sigma.to) - static_cast<float>(sigma.from);
  const at::Tensor velocity = to_velocity(sample, denoised, sigma.from);
  return (sample.to(at::kFloat) + velocity.to(at::kFloat) * step).to(sample.scalar_type());
}

at::Tensor ancestral_euler_step(const at::Tensor& sample, const at::Tensor& denoised,
                                SigmaInterval sigma, const at::Tensor& noise,
                                const AncestralOptions& options) {
  const auto from = static_cast<float>(sigma.from);
  const auto to = static_cast<float>(sigma.to);
  const auto eta = static_cast<float>(options.eta);
  if (to == 0.0f) return denoised.to(sample.scalar_type());
  FLOTILLA_ASSERT(eta == 0.0f || noise.defined());

  const float ratio = 1.0f + (to / from - 1.0f) * eta;
  const float down = to * ratio;
  const float keep = down / from;
  at::Tensor next = sample.to(at::kFloat) * keep + denoised.to(at::kFloat) * (1.0f - keep);
  if (eta > 0.0f) {
    const float alpha_next = 1.0f - to;
    const float alpha_down = 1.0f - down;
    const float kept_variance = down * down * (alpha_next * alpha_next) / (alpha_down * alpha_down);
    const float fresh = std::sqrt(std::max(to * to - kept_variance, 0.0f));
    next = next * (alpha_next / alpha_down) + noise.to(at::kFloat) * options.noise_scale * fresh;
  }
  return next.to(sample.scalar_type());
}

at::Tensor cfg_pp_euler_step(const at::Tensor& sample, const at::Tensor& denoised,
                             const at::Tensor& uncond, SigmaInterval sigma, const at::Tensor& noise,
                             const AncestralOptions& options) {
  // Alpha is 0 at sigma 1; the smallest float step keeps the ratios finite.
  constexpr float kSmallestAlpha = std::numeric_limits<float>::epsilon();
  const auto from = static_cast<float>(sigma.from);
  const auto to = static_cast<float>(sigma.to);
  const float alpha_from = std::max(1.0f - from, kSmallestAlpha);
  const float alpha_to = std::max(1.0f - to, kSmallestAlpha);

  const at::Tensor direction = (sample.to(at::kFloat) - uncond.to(at::kFloat) * alpha_from) / from;
  const AncestralSplit split =
      split_ancestral(from / alpha_from, to / alpha_to, static_cast<float>(options.eta));
  at::Tensor next = denoised.to(at::kFloat) * alpha_to + direction * (alpha_to * split.down);
  if (noise.defined() && options.eta > 0.0 && options.noise_scale > 0.0) {
    next = next + noise.to(at::kFloat) * alpha_to * options.noise_scale * split.up;
  }
  return next.to(sample.scalar_type());
}

Res2sWeights res2s_weights(double h, double midpoint) {
  // phi_1(z) = (e^z - 1) / z and phi_2(z) = (e^z - 1 - z) / z^2, with their limits at 0.
  const auto is_zero = [](double z) { return std::abs(z) < 1e-10; };
  const auto phi_1 = [&](double z) { return is_zero(z) ? 1.0 : std::expm1(z) / z; };
  const auto phi_2 = [&](double z) { return is_zero(z) ? 0.5 : (std::expm1(z) - z) / (z * z); };
  const double b2 = phi_2(-h) / midpoint;
  return {.a21 = midpoint * phi_1(-h * midpoint), .b1 = phi_1(-h) - b2, .b2 = b2};
}

at::Tensor res2s_noise_step(const at::Tensor& sample, const at::Tensor& target, SigmaInterval sigma,
                            const at::Tensor& noise, double eta) {
  // A little of the old noise always stays, else its level would be the root of a negative number.
  constexpr double kLargestShare = 0.9999;
  const double up = sigma.to * std::min(eta, kLargestShare);
  if (up == 0.0) return target;
  const double residual = std::sqrt(std::max(sigma.to * sigma.to - up * up, 0.0));
  const double alpha = 1.0 - sigma.to + residual;
  const double down = residual / alpha;

  const at::Tensor direction = (sample - target) / (sigma.from - sigma.to);
  const at::Tensor clean = sample - direction * sigma.from;
  return ((clean + direction * down) * alpha + noise * up).to(target.scalar_type());
}

}  // namespace flotilla::diffusion
