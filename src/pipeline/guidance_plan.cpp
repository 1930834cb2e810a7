#include "pipeline/guidance_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace flotilla::pipeline {
namespace {

using diffusion::PassKind;

// A batch saves reading the weights again, which weighs as much as computing a few hundred tokens.
// Far above that it gains nothing and only multiplies the memory of the activations.
constexpr int64_t kMostBatchTokens = 4096;

diffusion::GuiderParams params_of(const config::ModalityGuidance& guidance) {
  FLOTILLA_ASSERT(guidance.stg_blocks.has_value());
  return {.cfg_scale = guidance.cfg,
          .stg_scale = guidance.stg,
          .modality_scale = guidance.modality,
          .rescale = guidance.rescale,
          .skip_step = guidance.skip_step,
          .stg_blocks = *guidance.stg_blocks};
}

}  // namespace

bool GuidancePlan::needs_negative_prompt() const {
  return std::find(passes.begin(), passes.end(), PassKind::unconditional) != passes.end();
}

std::string GuidancePlan::describe() const {
  if (passes.size() == 1) return "1 pass a step";
  std::vector<std::string_view> names;
  for (const PassKind pass : passes) names.push_back(to_string(pass));
  return fmt::format("{} passes a step ({}) {}", passes.size(), fmt::join(names, ", "),
                     order == PassOrder::batch ? "in one batch" : "one after the other");
}

PassOrder choose_pass_order(int64_t passes, int64_t tokens) {
  return passes * tokens <= kMostBatchTokens ? PassOrder::batch : PassOrder::sequence;
}

GuidancePlan plan_guidance(const config::Job& job, int64_t tokens) {
  GuidancePlan plan;
  plan.video = params_of(job.stage_1.guidance.video);
  plan.audio = params_of(job.stage_1.guidance.audio);
  plan.passes = diffusion::plan_passes(plan.video, plan.audio, /*step=*/0).passes;
  plan.order = choose_pass_order(static_cast<int64_t>(plan.passes.size()), tokens);
  return plan;
}

std::vector<std::string> guidance_warnings(const config::Job& job, const GuidancePlan& plan,
                                           int64_t num_layers) {
  std::vector<std::string> warnings;
  const auto check_blocks = [&](const char* stream, const diffusion::GuiderParams& params) {
    std::vector<int64_t> absent;
    for (const int64_t block : params.stg_blocks) {
      if (block >= num_layers) absent.push_back(block);
    }
    if (!params.needs_perturbed() || absent.empty()) return;
    const bool all_absent = absent.size() == params.stg_blocks.size();
    warnings.push_back(fmt::format(
        "stage_1.guidance.{}.stg_blocks: this model has blocks 0 to {}, so [{}] {}", stream,
        num_layers - 1, fmt::join(absent, ", "),
        all_absent ? "perturbs nothing and the stg pass only costs time; name other blocks, or "
                     "set stg: 0"
                   : "has no effect"));
  };
  check_blocks("video", plan.video);
  check_blocks("audio", plan.audio);
  if (!job.negative_prompt.empty() && !plan.needs_negative_prompt()) {
    warnings.emplace_back("negative_prompt has no effect: cfg is 1 for video and audio");
  }
  return warnings;
}

}  // namespace flotilla::pipeline
