#include "diffusion/guider.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace flotilla::diffusion {
namespace {

// Scales come from text and arithmetic: 1 within rounding means "off".
bool is_one(double scale) { return std::abs(scale - 1.0) <= 1e-9 * std::max(std::abs(scale), 1.0); }

// Coefficient [B, 1, 1] of the projection of `vector` onto `axis`, both [B, T, D].
at::Tensor projection(const at::Tensor& vector, const at::Tensor& axis) {
  const at::Tensor flat_vector = vector.flatten(1);
  const at::Tensor flat_axis = axis.flatten(1);
  const at::Tensor dot = (flat_vector * flat_axis).sum(1, /*keepdim=*/true);
  const at::Tensor norm = flat_axis.square().sum(1, /*keepdim=*/true) + 1e-8;
  return (dot / norm).unsqueeze(-1);
}

}  // namespace

bool GuiderParams::needs_unconditional() const { return !is_one(cfg_scale); }
bool GuiderParams::needs_perturbed() const { return stg_scale != 0.0; }
bool GuiderParams::needs_isolated() const { return !is_one(modality_scale); }
bool GuiderParams::skips(int64_t step) const {
  return skip_step > 0 && step % (skip_step + 1) != 0;
}

at::Tensor guide(const GuiderParams& params, const PassPredictions& predictions) {
  const at::Tensor cond = predictions.cond.to(at::kFloat);
  at::Tensor guided = cond;
  const auto push_from = [&](const at::Tensor& other, double scale, bool needed) {
    if (!needed) return;
    FLOTILLA_ASSERT(other.defined());
    guided = guided + (cond - other.to(at::kFloat)) * scale;
  };
  push_from(predictions.uncond, params.cfg_scale - 1.0, params.needs_unconditional());
  push_from(predictions.perturbed, params.stg_scale, params.needs_perturbed());
  push_from(predictions.isolated, params.modality_scale - 1.0, params.needs_isolated());
  if (params.rescale != 0.0) {
    const at::Tensor factor = cond.std() / guided.std();
    guided = guided * (factor * params.rescale + (1.0 - params.rescale));
  }
  return guided.to(predictions.cond.scalar_type());
}

GuiderSchedule::GuiderSchedule(GuiderParams params)
    : bins_{{std::numeric_limits<double>::infinity(), std::move(params)}} {}

GuiderSchedule::GuiderSchedule(std::vector<std::pair<double, GuiderParams>> bins)
    : bins_(std::move(bins)) {
  if (bins_.empty()) fail(ErrorKind::config, "guidance by sigma needs at least one bin");
  std::sort(bins_.begin(), bins_.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  const auto twice = std::adjacent_find(
      bins_.begin(), bins_.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != bins_.end()) {
    fail(ErrorKind::config,
         fmt::format("guidance by sigma names the bound {} twice", twice->first));
  }
}

const GuiderParams& GuiderSchedule::at(double sigma) const {
  // Sigmas are float32: a bound of 0.4 has to hold for the sigma that is written 0.4.
  const auto level = static_cast<float>(sigma);
  const auto bin = std::find_if(bins_.rbegin(), bins_.rend(), [level](const auto& entry) {
    return static_cast<float>(entry.first) >= level;
  });
  return bin == bins_.rend() ? bins_.front().second : bin->second;
}

bool GuiderSchedule::skips_steps() const {
  return std::any_of(bins_.begin(), bins_.end(),
                     [](const auto& bin) { return bin.second.skip_step > 0; });
}

at::Tensor cfg_delta(const at::Tensor& cond, const at::Tensor& uncond, double scale) {
  return (cond - uncond) * (scale - 1.0);
}

at::Tensor cfg_star_delta(const at::Tensor& cond, const at::Tensor& uncond, double scale) {
  return (cond - projection(cond, uncond) * uncond) * (scale - 1.0);
}

at::Tensor stg_delta(const at::Tensor& cond, const at::Tensor& perturbed, double scale) {
  return (cond - perturbed) * scale;
}

at::Tensor apg_delta(const at::Tensor& cond, const at::Tensor& uncond, const ApgOptions& options) {
  at::Tensor difference = cond - uncond;
  if (options.norm_threshold > 0.0) {
    const at::Tensor norm = difference.norm(2, {-3, -2, -1}, /*keepdim=*/true);
    difference = difference * (norm.reciprocal() * options.norm_threshold).clamp_max(1.0);
  }
  const at::Tensor parallel = projection(difference, cond) * cond;
  const at::Tensor orthogonal = difference - parallel;
  return (parallel * options.eta + orthogonal) * (options.scale - 1.0);
}

}  // namespace flotilla::diffusion
