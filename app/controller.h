// flotilla run --ranks N: this process starts mpirun with N ranks of the program and stays beside
// them as their controller. It passes signals on with as much time as the ranks need, returns the
// exit code of the job whatever mpirun makes of it, and leaves no process behind: the ranks hold a
// connection to it (lifeline.h) that ends with either side. It computes nothing itself.
#pragma once

#include <optional>
#include <string>

#include "app/options.h"

namespace flotilla::app {

struct ControlRequest {
  int ranks = 1;
  double grace_s = 120;         // from a signal to the end of ranks that have not stopped by then
  std::string mpirun;           // empty: found
  std::string command = "run";  // of flotilla, that the ranks run
};

// --ranks and the options that only go with it.
void add_control_options(po::options_description& options);

// Nothing without --ranks, and in a rank that a controller started: its command line is the same.
// Errors (ErrorKind::usage): under another launcher; values out of range.
std::optional<ControlRequest> control_request(const po::variables_map& values);

// Runs the command with the command line `arguments` on the ranks; the exit code of the job.
// `can_stop`: the job has a checkpoint to stop with; without, the first signal ends it at once.
// Errors (ErrorKind::machine): no mpirun, or one that does not start the ranks.
int control_ranks(const ControlRequest& request, const Arguments& arguments, bool can_stop);

}  // namespace flotilla::app
