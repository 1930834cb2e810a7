// Sigma schedules: n steps are n + 1 noise levels from the noisiest to the cleanest.
// The distilled tables belong to the distilled weights; the others are formulas of the LTX-2
// reference (ltx_core/components/schedulers.py). Arithmetic is float32 where the reference's is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace flotilla::diffusion {

using Sigmas = std::vector<float>;

// Fixed tables of the distilled models.
Sigmas distilled_sigmas();          // first stage, 8 steps
Sigmas distilled_stage_2_sigmas();  // second stage, 3 steps
Sigmas tiled_stage_2_sigmas();      // second stage in tiles, 2 steps: low enough that tiles agree

struct Ltx2Schedule {
  // Tokens of the latent; the pipelines leave it out, which stands for 4096 at every size.
  std::optional<int64_t> num_tokens;
  double max_shift = 2.05;   // at 4096 tokens
  double base_shift = 0.95;  // at 1024 tokens
  bool stretch = true;       // so that the last sigma before 0 is `terminal`
  double terminal = 0.1;
};
// Errors (ErrorKind::config): fewer than one step; a schedule without finite sigmas (one step with
// a token count, or so many tokens that every sigma is 1): the stretch would divide 0 by 0.
Sigmas ltx2_sigmas(int64_t steps, const Ltx2Schedule& options = {});

// `linear_steps` (default: half of them) equal small steps down to 1 - threshold_noise, then a
// parabola to 0. Errors (ErrorKind::config): impossible counts.
Sigmas linear_quadratic_sigmas(int64_t steps, double threshold_noise = 0.025,
                               std::optional<int64_t> linear_steps = std::nullopt);

// Timesteps at quantiles of a beta distribution (arXiv 2407.12173). Equal timesteps are merged, so
// very many steps give a shorter schedule. Errors (ErrorKind::config): fewer than one step.
Sigmas beta_sigmas(int64_t steps, double alpha = 0.6, double beta = 0.6);

// Errors (ErrorKind::config): fewer than two sigmas, one outside [0, 1] or not finite, one that is
// larger than its predecessor, a 0 before the end.
void check_sigmas(std::span<const float> sigmas);

}  // namespace flotilla::diffusion
