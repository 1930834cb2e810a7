// The `ti2vid_two_stages` pipeline: guided denoising at half resolution with the full model, latent
// upsampling, a few steps at full resolution with the distilled LoRA on top, decode. The sound is
// finished after stage 1: stage 2 sees it and refines it along, but only its picture is kept (in
// tiles its sound would not be usable). Order of the draws and schedules as in
// ltx_pipelines/ti2vid_two_stages.py of the LTX-2 reference.
#pragma once

#include <cstdint>

#include "pipeline/run_state.h"
#include "pipeline/stages.h"

namespace flotilla::pipeline {

// Up to and including stage 2; see run_distilled() for `state`.
ClipLatents run_two_stages(const Session& session, uint64_t seed, RunState& state);

}  // namespace flotilla::pipeline
