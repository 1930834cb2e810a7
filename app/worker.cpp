// flotilla worker: a rank of a fleet (docs/fleet.md). The controller of the fleet starts it; it is
// not for the command line, and so not in the list of commands.
#include "fleet/worker.h"

#include <memory>

#include "app/command.h"
#include "app/launcher.h"
#include "base/error.h"
#include "fleet/job_runner.h"

namespace flotilla::app {

int worker(const Arguments& arguments) {
  if (!arguments.empty()) fail(ErrorKind::usage, "flotilla worker takes no arguments");
  fleet::WorkerOptions options;
  options.ranks.environment = host().variable;
  return fleet::run_worker(
      [](comm::RankContext& ranks) { return std::make_unique<fleet::JobRunner>(ranks, host()); },
      options);
}

}  // namespace flotilla::app
