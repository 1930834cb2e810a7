// The denoise loop of one stage: step after step from noise to latents, with a safe point after
// each. All that changes from step to step is in a DenoiseState, so that a loop can stop anywhere
// and go on later, in another process, bit for bit. Next: sampler.h (one step), denoiser.h (the
// model).
#pragma once

#include <functional>
#include <string>

#include "diffusion/denoise_state.h"
#include "diffusion/latent_state.h"
#include "diffusion/noise.h"
#include "diffusion/sampler.h"
#include "diffusion/schedule.h"

namespace flotilla::diffusion {

// What a stage consists of; `denoiser` and `sampler` must outlive the loop.
struct DenoiseStage {
  std::string name;  // "stage_1", in checkpoints and messages
  Sigmas sigmas;
  AvLatents latents;  // noised start; also masks, clean latents and positions of all steps
  Denoiser& denoiser;
  Sampler& sampler;

  int64_t num_steps() const { return static_cast<int64_t>(sigmas.size()) - 1; }
};

enum class SafePoint { go_on, stop };
// Called after each step with the state, the number of steps done and of all steps. What it leaves
// in the state's tokens is what the next step starts from.
using StepCallback = std::function<SafePoint(DenoiseState&, int64_t step, int64_t steps)>;

enum class LoopEnd { finished, stopped };

// The state before the first step. `generator` is the job's, after it has made the stage's noise.
DenoiseState start_stage(const DenoiseStage& stage, const NoiseGenerator& generator);

// Runs the steps from `state.step` on and keeps `state` up to date; after an error it is the last
// good one. Stops when the callback says so, unless all steps are done.
// Errors: ErrorKind::config (sigmas), ErrorKind::input (a state of another stage, sampler or size),
// ErrorKind::non_finite (NaN or infinity in the new latents; names stage, step and stream), and
// what the denoiser throws, with stage and step as context.
LoopEnd run_denoise_loop(const DenoiseStage& stage, DenoiseState& state,
                         const StepCallback& after_step = {});

// The stage's latents with the tokens of `state`, in dtype and on the device of the run.
AvLatents latents_at(const DenoiseStage& stage, const DenoiseState& state);

}  // namespace flotilla::diffusion
