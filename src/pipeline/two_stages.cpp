#include "pipeline/two_stages.h"

#include "pipeline/sequence.h"

namespace flotilla::pipeline {

ClipLatents run_two_stages(const Session& session, uint64_t seed, RunState& state) {
  const Sequence sequence{
      // Only where a pass reads it.
      .encodes_negative_prompt = session.plan.stage_1.guidance.needs_negative_prompt(),
      .fuses_stage_2_loras = true,
      .ends_sound_in_stage_1 = true,
  };
  return run_sequence(session, seed, sequence, state);
}

}  // namespace flotilla::pipeline
