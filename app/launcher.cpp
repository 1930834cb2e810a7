#include "app/launcher.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "comm/launch.h"

namespace flotilla::app {
LaunchedRanks launched_ranks() {
  const auto launch = comm::find_launch(host().variable);
  return launch ? LaunchedRanks{launch->rank, launch->world_size} : LaunchedRanks{};
}

void require_one_rank() {
  const LaunchedRanks ranks = launched_ranks();
  log::configure({.level = log::Level::info, .rank = ranks.rank, .world_size = ranks.world_size});
  if (ranks.world_size <= 1) return;
  // One message, not one a rank.
  if (ranks.rank != 0) std::exit(exit_code(ErrorKind::usage));
  fail(ErrorKind::usage,
       fmt::format("started with {} ranks, but this command works on one; start it without a "
                   "launcher, or with mpirun -n 1",
                   ranks.world_size));
}

pipeline::Host host() {
  const char* path = std::getenv("PATH");
  return {path == nullptr ? "" : path, [](const char* name) { return std::getenv(name); }};
}

}  // namespace flotilla::app
