// Guidance: how the predictions of several passes of one step become one x0.
// Passes: conditional, unconditional (negative prompt), perturbed (self-attention of some blocks
// passed through: STG), isolated (no attention between video and sound). Formulas:
// ltx_core/components/guiders.py of the LTX-2 reference. Statistics run over whole tensors, so
// callers hand over true tokens only, never padding, and the whole sequence, never a rank's share.
// Next: guided_denoiser.h (which passes a step needs).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace flotilla::diffusion {

// Guidance of one stream; the defaults switch everything off.
struct GuiderParams {
  double cfg_scale = 1.0;
  double stg_scale = 0.0;
  double modality_scale = 1.0;
  double rescale = 0.0;   // 1: the result gets the standard deviation of the conditional one
  int64_t skip_step = 0;  // n: after each guided step, n steps reuse its result
  std::vector<int64_t> stg_blocks;  // blocks whose self-attention the perturbed pass skips

  bool needs_unconditional() const;
  bool needs_perturbed() const;
  bool needs_isolated() const;
  bool skips(int64_t step) const;
};

// x0 predictions [B, T, D] of one stream; those that were not needed are undefined.
struct PassPredictions {
  at::Tensor cond;
  at::Tensor uncond;
  at::Tensor perturbed;
  at::Tensor isolated;
};

// The multi-modal guider: cond + (cfg - 1)(cond - uncond) + stg (cond - perturbed)
// + (modality - 1)(cond - isolated), then rescaled. In float32; returns the dtype of cond.
at::Tensor guide(const GuiderParams& params, const PassPredictions& predictions);

// Guidance that depends on sigma: bins with their upper bounds; a sigma above all bounds uses the
// bin with the largest one.
class GuiderSchedule {
 public:
  // The same for every sigma.
  explicit GuiderSchedule(GuiderParams params);
  // (upper bound, params) in any order. Errors (ErrorKind::config): empty, or a bound twice.
  explicit GuiderSchedule(std::vector<std::pair<double, GuiderParams>> bins);

  const GuiderParams& at(double sigma) const;
  // Whether any bin reuses results, so that they must be remembered.
  bool skips_steps() const;

 private:
  std::vector<std::pair<double, GuiderParams>> bins_;  // largest bound first
};

// Single-purpose guiders: what to add to the conditional prediction.
at::Tensor cfg_delta(const at::Tensor& cond, const at::Tensor& uncond, double scale);
// The unconditional prediction is first scaled to its best fit of the conditional one.
at::Tensor cfg_star_delta(const at::Tensor& cond, const at::Tensor& uncond, double scale);
at::Tensor stg_delta(const at::Tensor& cond, const at::Tensor& perturbed, double scale);

// Adaptive projected guidance: the part along `cond` is weighted with `eta`; a difference longer
// than `norm_threshold` (0: no limit) is shortened to it.
struct ApgOptions {
  double scale = 1.0;
  double eta = 1.0;
  double norm_threshold = 0.0;
};
at::Tensor apg_delta(const at::Tensor& cond, const at::Tensor& uncond, const ApgOptions& options);

}  // namespace flotilla::diffusion
