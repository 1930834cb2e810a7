// How flotilla run --ranks starts mpirun, and what it sweeps up behind it. Open MPI is what is
// known here: another MPI's mpirun gets `-n N PROGRAM ARGUMENTS` and passes over the variables.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "app/command.h"

namespace flotilla::app {

// `wish` when it is given, a path or a name in PATH; else the one of the MPI that this program was
// built with; else the one in PATH. Errors (ErrorKind::machine): there is none.
std::string find_mpirun(const std::string& wish);

// N times this program with `arguments`.
std::vector<std::string> mpirun_command(const std::string& mpirun, int ranks,
                                        const Arguments& arguments);

// Sets in the environment of this process what mpirun and the ranks need and the user has not set:
// this machine only, more ranks than cores, root in a container, no binding, threads for each rank.
void prepare_environment(int ranks);

// Removes what an mpirun that was killed leaves behind: the session folder of its process, and the
// shared memory of its job (0: unknown).
void remove_leftovers(pid_t mpirun, int64_t job);

}  // namespace flotilla::app
