// The notice board of a communicator in shared memory: which process each rank is, and how many
// collective calls it has entered. Counters only grow, so a rank one call ahead does no harm, and
// the ranks that are behind can be named. Private to comm/.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/mpi_session.h"
#include "comm/shared_memory.h"
#include "comm/wait.h"

namespace flotilla::comm {

class Board {
 public:
  // Collective over `comm`. Errors (ErrorKind::machine, on all ranks): no shared memory.
  Board(const MpiComm& comm, int world_rank);

  const PeerWatch& peers() const { return peers_; }
  // World ranks in the order of the communicator's.
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  // Enters the next collective call; gives its number.
  uint64_t arrive();
  // World ranks that have not entered call `epoch`.
  std::vector<int> behind(uint64_t epoch) const;
  bool all_arrived(uint64_t epoch) const;

  // True for the first rank that asks: the one that reports a fault for all.
  bool claim_report() noexcept;

 private:
  struct alignas(64) Cell {
    std::atomic<uint64_t> arrivals;
  };
  struct alignas(64) Head {
    std::atomic<uint32_t> reported;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                std::atomic<uint32_t>::is_always_lock_free);

  Head& head() const;
  Cell& cell(int rank) const;

  SharedMemory memory_;
  std::vector<int> world_ranks_;
  PeerWatch peers_;
  int rank_;
  uint64_t arrivals_ = 0;
};

}  // namespace flotilla::comm
