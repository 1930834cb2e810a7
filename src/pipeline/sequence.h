// The sequence that both pipelines follow: text, images, stage 1 at half resolution, latent
// upsampling, stage 2 at full resolution. Each result goes into the run's state under its name, and
// what is there already, from a checkpoint, is not made again.
#pragma once

#include <cstdint>
#include <string>

#include "pipeline/run_state.h"
#include "pipeline/stages.h"

namespace flotilla::pipeline {

// What the pipelines differ in.
struct Sequence {
  bool encodes_negative_prompt = false;
  bool fuses_stage_2_loras = false;
  // The sound of stage 1 is the clip's; that of stage 2 is made along and dropped.
  bool ends_sound_in_stage_1 = false;
};

// Up to and including stage 2; a state that is complete needs no model. Order of the noise draws:
// see diffusion/noise.h.
ClipLatents run_sequence(const Session& session, uint64_t seed, const Sequence& sequence,
                         RunState& state);

}  // namespace flotilla::pipeline
