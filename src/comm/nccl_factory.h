// Makes communicators on NCCL, for code that is built with and without CUDA. Private to comm/.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/mpi_communicator.h"

namespace flotilla::comm {

// Whether this build has it.
bool has_nccl();
// "2.28.9"; "" without it.
std::string nccl_version();

// Collective over each of `hosts`, which are of the same ranks, one a GPU: a communicator for each,
// all on one NCCL communicator. `device` has an index. Errors (ErrorKind::communication): NCCL
// fails, or the ranks do not come; ErrorKind::internal without has_nccl().
std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(
    const std::vector<std::shared_ptr<MpiCommunicator>>& hosts, at::Device device,
    double timeout_s);

}  // namespace flotilla::comm
