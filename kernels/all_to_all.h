// The exchange of sequence parallelism between GPUs: blocks of bytes go straight from this rank's
// tensors into the buffers of its peers, several tensors in one launch and one barrier. What goes
// where comes as BlockCopy (comm/exchange_layout.h has the index equations), so one kernel serves
// tokens to heads, heads to tokens and the gather of heads, of any element type.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/block_copy.h"
#include "kernels/exchange_peers.h"

namespace flotilla::kernels {

constexpr int kMaxExchangeParts = 4;

struct ExchangePart {
  const void* from = nullptr;
  BlockCopy to_rank[kMaxRanks];  // `to` counts from the receiver's slot
};

struct AllToAllArgs {
  ExchangePeers peers;
  int parts = 0;
  ExchangePart part[kMaxExchangeParts];
  // Own memory that nobody writes and that is cleared: rows that are padding.
  BlockCopy cleared;  // `to` counts from the own slot; `from` is not used
  int blocks = 0;     // 0: as many as the device runs at once
};

// Asynchronous on `stream`; capturable. 16 bytes at a time where sizes and pointers allow. The
// kernel ends when all ranks have delivered, or after the time limit with a record in peers.fault.
cudaError_t launch_all_to_all(const AllToAllArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
