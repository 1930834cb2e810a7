// The head exchange between GPUs: kernels write straight into the buffers of the peers (CUDA IPC)
// and meet them on the device (kernels/all_to_all.h, kernels/qk_norm_rope.h). Calls are
// asynchronous on the current stream and can be captured in a CUDA graph: each stands for one slot
// of the two that take turns, so a captured piece holds an even number of calls. A peer that does
// not come in time is found on the device, recorded, and told by the next set_token_count() or
// stats(); until then results are undefined, and nothing waits any more. Only in CUDA builds.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/head_exchange.h"

namespace flotilla::comm {

// Collective. `device` has an index; several ranks may share one. `communicator` must outlive the
// result. Errors (agreed): see DevicePeerBuffers; ErrorKind::config, heads that do not divide.
std::unique_ptr<HeadExchange> make_cuda_head_exchange(Communicator& communicator, at::Device device,
                                                      const HeadExchangeOptions& options);

// One rank of `world_size` whose peers are buffers of its own device: the same kernels and bytes
// without other processes, for measuring one rank's share of the work. Results of exchanges hold
// only what this rank has sent to itself.
std::unique_ptr<HeadExchange> make_loopback_head_exchange(int world_size, at::Device device,
                                                          const HeadExchangeOptions& options);

}  // namespace flotilla::comm
