#include "app/launcher.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"
#include "base/log.h"

namespace flotilla::app {
namespace {

struct Names {
  const char* rank;
  const char* size;
};
// Open MPI, PMI (MPICH and its kin), and Slurm inside a step: SLURM_STEP_NUM_TASKS is set by srun
// only.
constexpr Names kLaunchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                {"PMI_RANK", "PMI_SIZE"},
                                {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

}  // namespace

LaunchedRanks launched_ranks() {
  for (const auto& names : kLaunchers) {
    const char* rank = std::getenv(names.rank);
    const char* size = std::getenv(names.size);
    if (rank != nullptr && size != nullptr) return {std::atoi(rank), std::atoi(size)};
  }
  return {};
}

void require_one_rank() {
  const LaunchedRanks ranks = launched_ranks();
  log::configure({.level = log::Level::info, .rank = ranks.rank, .world_size = ranks.world_size});
  if (ranks.world_size <= 1) return;
  // One message, not one a rank.
  if (ranks.rank != 0) std::exit(exit_code(ErrorKind::usage));
  fail(
      ErrorKind::usage,
      fmt::format("started with {} ranks, but this version runs a job on one; use \"flotilla run\" "
                  "without a launcher, or mpirun -n 1",
                  ranks.world_size));
}

pipeline::Host host() {
  const char* path = std::getenv("PATH");
  return {path == nullptr ? "" : path, [](const char* name) { return std::getenv(name); }};
}

}  // namespace flotilla::app
