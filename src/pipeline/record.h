// The record of a run: versions, plan, times, memory (output.metrics).
#pragma once

#include <string>

#include "pipeline/phases.h"
#include "pipeline/run_job.h"
#include "pipeline/run_state.h"
#include "pipeline/safe_points.h"

namespace flotilla::pipeline {

// "0.1.0 (1a2b3c4d5)".
std::string program_version();

// "flotilla 0.1.0 (1a2b3c4d5), Release, GNU 12.2.0; LibTorch 2.7.1; ...": what this program was
// built with and what it has loaded.
std::string versions_line();

// What a run leaves beside its times; a decode alone leaves nothing.
struct RunRecord {
  const RunState* state = nullptr;
  CheckpointWrites checkpoints;
};

// Writes output.metrics when the job asks for it, with the times of all ranks. Collective; the
// driver writes. Errors: ErrorKind::output.
void write_metrics(const PreparedJob& prepared, const Phases& phases, const Host& host,
                   const Ranks& ranks = {}, const RunRecord& run = {});

}  // namespace flotilla::pipeline
