#include "comm/libraries.h"

#include <mpi.h>

#include <array>

#include "comm/nccl_factory.h"

namespace flotilla::comm {

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown";
  const std::string whole(text.data());
  return whole.substr(0, whole.find_first_of(",\r\n"));
}

std::string nccl_library() { return nccl_version(); }

}  // namespace flotilla::comm
