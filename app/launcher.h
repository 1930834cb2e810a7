// What a launcher (mpirun, srun) says of this process in its environment.
#pragma once

#include <chrono>
#include <optional>

#include "pipeline/run_job.h"

namespace flotilla::app {

struct LaunchedRanks {
  int rank = 0;
  int world_size = 1;
};
// From the variables of a launcher's step; those of a batch script alone say nothing about ranks.
LaunchedRanks launched_ranks();

// Errors (ErrorKind::usage): more than one rank, for commands that work on one. Without this, every
// copy would write over the others' files.
void require_one_rank();

// When a batch system takes the machine away, a minute before it does: time to write and to end.
// From SLURM_JOB_END_TIME; nothing without it.
std::optional<std::chrono::steady_clock::time_point> allocation_end();

// FLOTILLA_TEST_FAULT, for tests (CONTRIBUTING.md): what one rank of the job is to do wrong.
// Errors: ErrorKind::usage.
std::optional<pipeline::Fault> test_fault();

// PATH and getenv, for the rooms that must not read the environment themselves.
pipeline::Host host();

}  // namespace flotilla::app
