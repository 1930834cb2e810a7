#include "pipeline/distilled.h"

#include "pipeline/sequence.h"

namespace flotilla::pipeline {

ClipLatents run_distilled(const Session& session, uint64_t seed, RunState& state) {
  return run_sequence(session, seed, {}, state);
}

}  // namespace flotilla::pipeline
