// How a stage is guided: the scales of both streams, the passes that a step needs, and whether they
// run as one batch. Known before any work, like the rest of the plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/job.h"
#include "diffusion/guided_denoiser.h"
#include "pipeline/pass_runner.h"

namespace flotilla::pipeline {

// The default is a stage without guidance: the conditional pass alone.
struct GuidancePlan {
  diffusion::GuiderParams video;
  diffusion::GuiderParams audio;
  std::vector<diffusion::PassKind> passes = {diffusion::PassKind::conditional};
  PassOrder order = PassOrder::batch;

  bool needs_negative_prompt() const;
  // "4 passes a step (conditional, ..., isolated) in one batch".
  std::string describe() const;
};

// Whether `passes` passes of `tokens` tokens (video and sound) each run as one batch.
PassOrder choose_pass_order(int64_t passes, int64_t tokens);

// `job` has its stg_blocks (see model_defaults.h); `tokens` are those of one pass of its stage 1.
GuidancePlan plan_guidance(const config::Job& job, int64_t tokens);

// For the log: what the job asks of guidance and has no effect on a model of `num_layers` blocks.
std::vector<std::string> guidance_warnings(const config::Job& job, const GuidancePlan& plan,
                                           int64_t num_layers);

}  // namespace flotilla::pipeline
