// The record of a run: versions, plan, times, memory (output.metrics).
#pragma once

#include <string>

#include "pipeline/phases.h"
#include "pipeline/run_job.h"

namespace flotilla::pipeline {

// "0.1.0 (1a2b3c4d5)".
std::string program_version();

// Writes output.metrics when the job asks for it, with the times of all ranks. Collective; the
// driver writes. Errors: ErrorKind::output.
void write_metrics(const PreparedJob& prepared, const Phases& phases, const Host& host,
                   const Ranks& ranks = {});

}  // namespace flotilla::pipeline
