#include "comm/gpu_head_exchange.h"

#include "base/log.h"
#include "comm/agreement.h"
#include "comm/cuda_head_exchange.h"
#include "comm/nccl_head_exchange.h"

namespace flotilla::comm {
namespace {

std::unique_ptr<HeadExchange> through_nccl(Communicator& communicator,
                                           const HeadExchangeOptions& options) {
  agreed(communicator, [&] {
    check_heads(options.heads, communicator.world_size());
    if (nccl_head_exchange_serves(communicator)) return;
    fail(ErrorKind::machine,
         "sp.transport: nccl, but NCCL does not serve ranks that share a GPU; use auto or peer");
  });
  return make_nccl_head_exchange(communicator, options);
}

}  // namespace

std::unique_ptr<HeadExchange> make_gpu_head_exchange(Communicator& communicator,
                                                     const HeadExchangeOptions& options) {
  if (options.transport == ExchangeTransport::nccl) return through_nccl(communicator, options);
  try {
    return make_cuda_head_exchange(communicator, options.device, options);
  } catch (const AgreedError& error) {
    if (options.transport == ExchangeTransport::peer || error.kind() != ErrorKind::machine ||
        !nccl_head_exchange_serves(communicator))
      throw;
    if (communicator.is_driver()) {
      log::warn("comm",
                "heads are exchanged through NCCL, which is slower and keeps steps out of CUDA "
                "graphs, as the GPUs cannot write to each other: {}",
                error.what());
    }
  }
  return through_nccl(communicator, options);
}

}  // namespace flotilla::comm
