#include "diffusion/schedule.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/math/special_functions/beta.hpp>
#include <cmath>

#include "base/error.h"

namespace flotilla::diffusion {
namespace {

// Token counts at which the shift takes its base and its largest value.
constexpr double kBaseShiftTokens = 1024.0;
constexpr int64_t kMaxShiftTokens = 4096;

// The beta schedule picks from a table of this many shifted timesteps.
constexpr int64_t kBetaTimesteps = 10000;
constexpr double kBetaShift = 2.37;

void check_steps(int64_t steps) {
  if (steps < 1) fail(ErrorKind::config, fmt::format("steps ({}) must be at least 1", steps));
}

// g / (g + 1/t - 1) with g = exp(shift), in float32 for each t in (0, 1].
at::Tensor shift_timesteps(const at::Tensor& timesteps, double shift) {
  const double growth = std::exp(shift);
  return timesteps.reciprocal().sub(1.0).add(growth).reciprocal().mul(growth);
}

Sigmas to_sigmas(const at::Tensor& values) {
  const at::Tensor flat = values.to(at::kFloat).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

}  // namespace

Sigmas distilled_sigmas() {
  return {1.0f, 0.99375f, 0.9875f, 0.98125f, 0.975f, 0.909375f, 0.725f, 0.421875f, 0.0f};
}

Sigmas distilled_stage_2_sigmas() { return {0.909375f, 0.725f, 0.421875f, 0.0f}; }

Sigmas tiled_stage_2_sigmas() { return {0.625f, 0.4f, 0.0f}; }

Sigmas ltx2_sigmas(int64_t steps, const Ltx2Schedule& options) {
  check_steps(steps);
  const double slope =
      (options.max_shift - options.base_shift) / (kMaxShiftTokens - kBaseShiftTokens);
  const int64_t tokens = options.num_tokens.value_or(kMaxShiftTokens);
  const double shift =
      static_cast<double>(tokens) * slope + (options.base_shift - slope * kBaseShiftTokens);

  const at::Tensor levels = at::linspace(1.0, 0.0, steps + 1, at::kFloat).narrow(0, 0, steps);
  at::Tensor sigmas = shift_timesteps(levels, shift);  // [steps], without the final 0
  if (options.stretch) {
    const at::Tensor distance = 1.0 - sigmas;
    const at::Tensor scale = distance.select(0, -1) / (1.0 - options.terminal);
    sigmas = 1.0 - distance / scale;
  }
  if (!at::isfinite(sigmas).all().item<bool>()) {
    fail(ErrorKind::config,
         fmt::format(
             "the LTX-2 schedule has no finite sigmas for steps ({}) and {} tokens; use more "
             "steps, leave the token count out, or list the sigmas",
             steps, tokens));
  }
  Sigmas result = to_sigmas(sigmas);
  result.push_back(0.0f);
  return result;
}

Sigmas linear_quadratic_sigmas(int64_t steps, double threshold_noise,
                               std::optional<int64_t> linear_steps) {
  check_steps(steps);
  if (steps == 1) return {1.0f, 0.0f};
  const int64_t linear = linear_steps.value_or(steps / 2);
  if (linear < 1 || linear > steps) {
    fail(ErrorKind::config,
         fmt::format("linear_steps ({}) must be between 1 and steps ({})", linear, steps));
  }
  // The parabola a i^2 + b i + c continues the line in value and slope and reaches 1 at `steps`.
  const auto num_linear = static_cast<double>(linear);
  const auto num_quadratic = static_cast<double>(steps - linear);
  const double remainder = num_linear - threshold_noise * static_cast<double>(steps);
  const double a = remainder / (num_linear * num_quadratic * num_quadratic);
  const double b = threshold_noise / num_linear - 2.0 * remainder / (num_quadratic * num_quadratic);
  const double c = a * num_linear * num_linear;

  Sigmas sigmas;
  for (int64_t step = 0; step < steps; ++step) {
    const auto i = static_cast<double>(step);
    const double noise = step < linear ? i * threshold_noise / num_linear : a * (i * i) + b * i + c;
    sigmas.push_back(static_cast<float>(1.0 - noise));
  }
  sigmas.push_back(0.0f);
  return sigmas;
}

Sigmas beta_sigmas(int64_t steps, double alpha, double beta) {
  check_steps(steps);
  if (!(alpha > 0.0) || !(beta > 0.0)) {
    fail(ErrorKind::config, fmt::format("alpha ({}) and beta ({}) must be positive", alpha, beta));
  }
  const Sigmas table = to_sigmas(
      shift_timesteps(at::arange(1, kBetaTimesteps + 1, at::kFloat) / kBetaTimesteps, kBetaShift));
  Sigmas sigmas;
  int64_t last_index = -1;
  for (int64_t step = 0; step < steps; ++step) {
    const double quantile = 1.0 - static_cast<double>(step) / static_cast<double>(steps);
    const double timestep = boost::math::ibeta_inv(alpha, beta, quantile);
    const auto index =
        static_cast<int64_t>(std::nearbyint(timestep * static_cast<double>(kBetaTimesteps - 1)));
    if (index == last_index) continue;
    sigmas.push_back(table[static_cast<size_t>(index)]);
    last_index = index;
  }
  sigmas.push_back(0.0f);
  return sigmas;
}

void check_sigmas(std::span<const float> sigmas) {
  if (sigmas.size() < 2) {
    fail(ErrorKind::config, fmt::format("sigmas need at least 2 values, found {}", sigmas.size()));
  }
  for (size_t i = 0; i < sigmas.size(); ++i) {
    if (!(sigmas[i] >= 0.0f && sigmas[i] <= 1.0f)) {
      fail(ErrorKind::config, fmt::format("sigma {} ({}) must be between 0 and 1", i, sigmas[i]));
    }
    if (i > 0 && sigmas[i] > sigmas[i - 1]) {
      fail(ErrorKind::config,
           fmt::format("sigma {} ({}) must not be larger than the one before ({})", i, sigmas[i],
                       sigmas[i - 1]));
    }
    if (sigmas[i] == 0.0f && i + 1 < sigmas.size()) {
      fail(ErrorKind::config, fmt::format("sigma {} is 0 before the last step", i));
    }
  }
}

}  // namespace flotilla::diffusion
