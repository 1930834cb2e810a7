// How a kernel that writes into the memory of other ranks ends: all of its blocks have written,
// then this rank tells every peer the number of its call and waits for the same from all of them.
// What follows on the stream may read what the peers have written here. The number only grows and
// is waited for with "at least", so a rank that is one call ahead harms nobody; an exact count
// would be overrun by it. Two slots that calls use in turn make that safe: a rank writes call n + 2
// only after all have told n + 1, and so are through with the results of n.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace flotilla::kernels {

constexpr int kMaxRanks = 8;
// Flags of different ranks lie in different sectors of the second-level cache.
constexpr int kFlagStride = 4;  // in uint64_t

// Of one rank, in its device memory, zeroed when made.
struct ExchangeProgress {
  uint64_t calls;        // that have ended
  uint32_t blocks_done;  // of the call that runs
  uint32_t broken;       // a wait has expired: later calls do not wait
  uint64_t started_ns;   // of the call that runs
  // Sums over all calls.
  uint64_t busy_ns;
  uint64_t wait_ns;  // of these, when own writes were done and peers had not come
  uint64_t bytes_out;
};

// What a wait that expired leaves for the host, in pinned memory, zeroed when made.
struct ExchangeFault {
  uint64_t call;
  uint64_t seen[kMaxRanks];  // the last call that each rank had told
  uint32_t missing;          // bit r: rank r has not come
  uint32_t raised;           // written last
};

struct ExchangePeers {
  int rank = 0;
  int ranks = 1;
  int ranks_on_device = 1;  // this one too: those that share a GPU leave each other room on it
  std::byte* slot[kMaxRanks] = {};       // this call's place in the buffer of each rank
  uint64_t* own_flag[kMaxRanks] = {};    // this rank's flag in the memory of each rank
  const uint64_t* peer_flags = nullptr;  // flag of rank r, in own memory, at [r * kFlagStride]
  ExchangeProgress* progress = nullptr;
  ExchangeFault* fault = nullptr;
  uint64_t timeout_ns = 0;
  uint64_t bytes_out = 0;  // of this call to other ranks, for the sum
};

}  // namespace flotilla::kernels
