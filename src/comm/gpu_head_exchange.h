// Chooses between the head exchanges of GPUs. Only in builds with CUDA. Private to comm/.
#pragma once

#include <memory>

#include "comm/head_exchange.h"

namespace flotilla::comm {

// Collective. By options.transport; automatic: the peers' memory, and NCCL with a warning where
// that cannot be reached. Errors (agreed, ErrorKind::machine): what was asked for cannot be had.
std::unique_ptr<HeadExchange> make_gpu_head_exchange(Communicator& communicator,
                                                     const HeadExchangeOptions& options);

}  // namespace flotilla::comm
