// How ranks are started through mpirun, and what is swept up behind it. Open MPI is what is known
// here: another MPI's mpirun gets `-n N PROGRAM ARGUMENTS` and passes over the variables.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace flotilla::fleet {

// Variables of an environment by name.
using Variables = std::map<std::string, std::string>;

// Of this process.
Variables own_variables();
// "NAME=value", as a new process gets them.
std::vector<std::string> to_entries(const Variables& variables);

// `wish` when it is given, a path or a name in `search_path`; else the one of the MPI that this
// program was built with; else the one in `search_path`. Errors (ErrorKind::machine): there is
// none.
std::string find_mpirun(const std::string& wish, const std::string& search_path);

// N times `program` with `arguments`.
std::vector<std::string> mpirun_command(const std::string& mpirun, int ranks,
                                        const std::string& program,
                                        const std::vector<std::string>& arguments);
// The path of the program that this process runs.
std::string own_program();

// The entries of "2,3", a list of GPUs as CUDA_VISIBLE_DEVICES takes it: numbers, or names that
// begin with GPU- or MIG-. Errors (ErrorKind::usage): an empty entry, another word, one twice.
std::vector<std::string> parse_devices(const std::string& list);

// Adds what mpirun and the ranks need and the user has not set: this machine only, more ranks than
// cores, root in a container, no binding, threads for each rank.
void add_launch_defaults(Variables& variables, int ranks);

// Removes what an mpirun that was killed leaves behind: the session folder of its process, and the
// shared memory of its job (0: unknown).
void remove_leftovers(pid_t mpirun, int64_t job);
// The shared memory alone; ranks that use it still have it.
void remove_openmpi_memory(int64_t job);

}  // namespace flotilla::fleet
