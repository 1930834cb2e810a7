// flotilla run --dry-run: what a run would do and need, without doing it.
#pragma once

#include "app/options.h"
#include "config/load.h"

namespace flotilla::app {

// --dry-run and the options that only go with it.
void add_dry_run_options(po::options_description& options);

// Prints the plan and the forecast of a job; its errors are those of the run, and ErrorKind::memory
// for a job that would not fit. Under a launcher one rank does this for all.
int dry_run(const config::LoadedJob& loaded, const po::variables_map& values);

// Errors (ErrorKind::usage): an option that only goes with --dry-run, without it.
void require_no_dry_run_options(const po::variables_map& values);

}  // namespace flotilla::app
