// Rules across the keys of a job, in three steps: what needs nothing but the job (done by load.h),
// what this version does not run yet, and whether the named files are there.
#pragma once

#include "config/job.h"
#include "config/origins.h"
#include "config/problems.h"

namespace flotilla::config {

// Fills what follows from other keys: stage_1.steps from stage_1.sigmas.
void complete_job(Job& job, const Origins& origins, Problems& problems);

// Sizes, frames, required and unused keys, schedules, images, impossible combinations, output names
// that collide. Keys that are already in `problems` are left alone.
void check_job(const Job& job, const Origins& origins, Problems& problems);

// Refuses by name what a valid job may ask for and this version cannot do on `world_size` ranks,
// or this machine cannot bear (threads).
// Errors: ErrorKind::config, all at once.
void check_supported(const Job& job, const Origins& origins, int64_t world_size = 1);

// Errors (ErrorKind::input): one message with a line for each input file that is missing,
// unreadable or of the wrong kind (a folder in place of a file).
void validate_files(const Job& job, const Origins& origins);

// What the choice of `auto` values needs to know of the machine.
struct Machine {
  bool has_gpu = false;
  int64_t world_size = 1;
};
// The job with device, precision, stage_2.parallel and sp.exchange_timeout_seconds decided. Other
// `auto` values (attention, tiles, schedules, threads, what follows from the model's generation)
// belong to those who carry them out.
Job resolve_job(Job job, const Machine& machine);

}  // namespace flotilla::config
