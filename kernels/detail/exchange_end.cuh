// Begin and end of a kernel that writes into the memory of other ranks: see exchange_peers.h.
#pragma once

#include "kernels/exchange_peers.h"

namespace flotilla::kernels {

__device__ inline uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__device__ inline void store_release(uint64_t* flag, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

__device__ inline uint64_t load_acquire(const uint64_t* flag) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// By one warp: lane r waits for rank r.
__device__ inline void wait_for_peers(const ExchangePeers& peers, uint64_t call) {
  const int lane = static_cast<int>(threadIdx.x);
  const bool mine = lane < peers.ranks;
  uint64_t seen = mine ? 0 : call;
  const uint64_t start = nanoseconds();
  bool expired = false;
  while (true) {
    if (mine && seen < call) seen = load_acquire(peers.peer_flags + lane * kFlagStride);
    if (__all_sync(0xFFFFFFFFU, seen >= call)) return;
    expired = nanoseconds() - start > peers.timeout_ns;
    if (__any_sync(0xFFFFFFFFU, expired)) break;
    __nanosleep(20);
  }
  const uint32_t missing = __ballot_sync(0xFFFFFFFFU, seen < call);
  if (mine) peers.fault->seen[lane] = seen;
  __threadfence_system();
  __syncwarp();
  if (lane != 0) return;
  peers.progress->broken = 1;
  peers.fault->call = call;
  peers.fault->missing = missing;
  __threadfence_system();
  *static_cast<volatile uint32_t*>(&peers.fault->raised) = 1;
}

__device__ inline void begin_exchange(const ExchangePeers& peers) {
  if (blockIdx.x == 0 && threadIdx.x == 0) peers.progress->started_ns = nanoseconds();
}

// Called by all threads of all blocks (one-dimensional, at least a warp) when their writes are
// issued. All but the last block return at once.
__device__ inline void end_exchange(const ExchangePeers& peers) {
  __shared__ bool smem_is_last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();  // the block's writes, which __syncthreads() has ordered before this
    smem_is_last = atomicAdd(&peers.progress->blocks_done, 1U) == gridDim.x - 1;
  }
  __syncthreads();
  if (!smem_is_last || threadIdx.x >= 32) return;
  __threadfence_system();  // what the other blocks have counted in
  const uint64_t call = peers.progress->calls + 1;
  if (threadIdx.x < peers.ranks) store_release(peers.own_flag[threadIdx.x], call);
  const uint64_t written = nanoseconds();
  if (peers.progress->broken == 0) wait_for_peers(peers, call);
  __syncwarp();
  if (threadIdx.x != 0) return;
  const uint64_t now = nanoseconds();
  peers.progress->busy_ns += now - peers.progress->started_ns;
  peers.progress->wait_ns += now - written;
  peers.progress->bytes_out += peers.bytes_out;
  peers.progress->blocks_done = 0;
  peers.progress->calls = call;
}

}  // namespace flotilla::kernels
