// Runs the points of a sweep one after another in this process, with everything loaded once
// (residents.h) and a manifest of what became of each (io/sweep_manifest.h). Whatever ends it, the
// same call on the same folder goes on: points that are done stay, one that was stopped goes on
// from its checkpoint. Points do not know of each other: each has its own seed and noise, so the
// order changes no byte of a result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/sweep.h"
#include "pipeline/ranks.h"
#include "pipeline/run_job.h"
#include "pipeline/stop.h"
#include "pipeline/sweep_plan.h"

namespace flotilla::pipeline {

struct SweepSettings {
  SweepSelection selection;
  bool retry_failed = false;  // run points again that have failed
  StopSources stop;           // the job's limits count for the whole sweep
};

struct PointOutcome {
  size_t position = 0;  // in sweep.points
  PointState state = PointState::pending;
  bool made_now = false;  // not in an earlier run
  double seconds = 0;
  int exit_code = 0;
  std::string error;  // of a failed one
};

struct SweepResult {
  std::vector<PointOutcome> points;  // those of the selection by their index; on the driver only
  int64_t num_failed = 0;            // on all ranks
};

// Collective. An error of a point that all ranks agree on is recorded, and the sweep goes on; one
// of the program (ErrorKind::internal) or of the place for outputs ends it. Errors, agreed before
// any work: ErrorKind::usage (no such point), ErrorKind::input (files that points name are missing,
// all of them together), ErrorKind::output (a file of somebody else under the name of a point; the
// folder cannot be written), ErrorKind::failed_jobs (another process works on these points). Later:
// ErrorKind::stopped, and what ends all ranks.
SweepResult run_sweep(const config::Sweep& sweep, const SweepSettings& settings, const Host& host,
                      const Ranks& ranks = {});

}  // namespace flotilla::pipeline
