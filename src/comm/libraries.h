// The libraries that only this room knows, as they are found at run time. Needs no MPI session.
#pragma once

#include <string>

namespace flotilla::comm {

// "Open MPI v4.1.4": the first words of what the library says of itself.
std::string mpi_library();
// "2.28.9"; "" in a build without NCCL.
std::string nccl_library();

}  // namespace flotilla::comm
