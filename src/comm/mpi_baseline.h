// Plain MPI calls as the yardstick of benchmarks; nothing else uses them.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.h"

namespace flotilla::comm {

// Blocking MPI_Alltoall of two contiguous tensors of N equal parts. `communicator` must be one of
// RankContext or split from it. Errors (ErrorKind::communication).
void plain_all_to_all(const Communicator& communicator, const at::Tensor& from, at::Tensor& to);

}  // namespace flotilla::comm
