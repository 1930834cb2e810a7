// The head exchange by NCCL's sends and receives: for GPUs that cannot write into each other's
// memory. Blocks are packed, sent and unpacked, so it takes more passes over the data than kernels
// that write to the peers, and cannot be part of a captured graph. Private to comm/.
#pragma once

#include <memory>

#include "comm/head_exchange.h"

namespace flotilla::comm {

// `communicator` must be an NcclCommunicator (false: nccl_head_exchange_serves) and outlive the
// result. Results are new tensors, ordered on the current stream. A call waits for the one before
// it, with the exchange's deadline, and does not wait for itself. Errors: as of HeadExchange.
std::unique_ptr<HeadExchange> make_nccl_head_exchange(Communicator& communicator,
                                                      const HeadExchangeOptions& options);
bool nccl_head_exchange_serves(const Communicator& communicator);

}  // namespace flotilla::comm
