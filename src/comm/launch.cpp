#include "comm/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string_view>

#include "comm/agreement.h"

namespace flotilla::comm {
namespace {

// Slurm's step ids from here on are no steps of srun: batch script, interactive shell, extern.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

std::optional<int64_t> number(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr) return std::nullopt;
  const std::string_view view(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < 0) return std::nullopt;
  return value;
}

std::optional<Launch> pair_of(const Environment& environment, const char* rank_name,
                              const char* size_name) {
  const auto rank = number(environment, rank_name);
  const auto size = number(environment, size_name);
  if (!rank || !size || *size < 1) return std::nullopt;
  return Launch{static_cast<int>(*rank), static_cast<int>(*size), size_name};
}

// SLURM_STEP_NUM_TASKS is set by srun only. Where a container passed on no more than SLURM_NTASKS,
// it counts inside a step of srun, or when nothing says that this is a job's batch script.
std::optional<Launch> slurm_launch(const Environment& environment) {
  auto step = number(environment, "SLURM_STEP_ID");
  if (!step) step = number(environment, "SLURM_STEPID");
  if (step && *step >= kFirstSpecialStep) return std::nullopt;
  if (const auto launch = pair_of(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
    return launch;
  const bool batch_script = !step && environment("SLURM_JOB_ID") != nullptr;
  return batch_script ? std::nullopt : pair_of(environment, "SLURM_PROCID", "SLURM_NTASKS");
}

}  // namespace

std::optional<Launch> find_launch(const Environment& environment) {
  // mpirun is often started inside a step of srun, hardly ever the other way round: it comes first.
  if (const auto launch = pair_of(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
    return launch;
  if (const auto launch = pair_of(environment, "PMI_RANK", "PMI_SIZE")) return launch;
  return slurm_launch(environment);
}

void check_launch(const std::optional<Launch>& launch, int mpi_world_size) {
  if (!launch || launch->world_size == mpi_world_size) return;
  throw AgreedError(
      ErrorKind::usage,
      fmt::format(
          "the launcher started {} ranks ({}), but MPI sees {}: launcher and MPI library do "
          "not match; use the mpirun of this program's MPI, or srun --mpi=pmix",
          launch->world_size, launch->variable, mpi_world_size),
      launch->rank == 0);
}

}  // namespace flotilla::comm
