// The plain all-to-all of a library as the yardstick of benchmarks; nothing else uses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "comm/communicator.h"

namespace flotilla::comm {

// NCCL's version, "2.28.9", where tensors of such a device go through it; nothing where through
// MPI.
std::optional<std::string> nccl_of(const Communicator& communicator, at::Device device);

// Two contiguous tensors of N equal parts. Tensors of a GPU: as sends and receives of one NCCL
// group (as nccl-tests does), enqueued on the current stream; where ranks share a GPU, through
// copies in the host's memory. Others: blocking MPI_Alltoall. `communicator` must be one of
// RankContext or split from it. Errors (ErrorKind::communication).
void plain_all_to_all(Communicator& communicator, const at::Tensor& from, at::Tensor& to);

}  // namespace flotilla::comm
