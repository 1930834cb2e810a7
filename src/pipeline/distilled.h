// The `distilled` pipeline: text, 8 steps at half resolution, latent upsampling, 3 steps at full
// resolution, decode. No guidance: the weights were distilled for it. Order of the noise draws and
// schedules as in ltx_pipelines/distilled.py of the LTX-2 reference.
#pragma once

#include <cstdint>

#include "pipeline/run_state.h"
#include "pipeline/stages.h"

namespace flotilla::pipeline {

// Up to and including stage 2. Contexts, noised tokens and latents go into `state` under the names
// of io/latents_file.h; what it has already is not made again.
ClipLatents run_distilled(const Session& session, uint64_t seed, RunState& state);

}  // namespace flotilla::pipeline
