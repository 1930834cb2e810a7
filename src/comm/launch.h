// What a launcher (mpirun, srun) says of this process in its environment. MPI alone says how many
// ranks there are; these variables are the cross-check against a launcher and an MPI library that
// do not understand each other, where every copy believes that it is rank 0 of 1.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace flotilla::comm {

// getenv, or a table in tests; only app/ reads the environment.
using Environment = std::function<const char*(const char*)>;

struct Launch {
  int rank = 0;
  int world_size = 1;
  std::string variable;  // the one that gave world_size
};

// The innermost launcher's step. Empty without a launcher, and in a plain batch script: Slurm sets
// SLURM_NTASKS and SLURM_PROCID=0 there too, beside a job id but without the id of a real step.
std::optional<Launch> find_launch(const Environment& environment);

// Errors (ErrorKind::usage): the launcher started another number of ranks than MPI sees. Rank 0 of
// the launcher reports it (AgreedError, agreement.h), the other copies stay silent.
void check_launch(const std::optional<Launch>& launch, int mpi_world_size);

}  // namespace flotilla::comm
