// The notice board of a communicator in shared memory: how many collective calls each of its ranks
// has entered. Counters only grow, so a rank one call ahead does no harm, and the ranks that are
// behind can be named. The board of the whole job is another one: job_board.h. Private to comm/.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/mpi_session.h"
#include "comm/shared_memory.h"
#include "comm/wait.h"

namespace flotilla::comm {

// Collective over the job's ranks. Errors (ErrorKind::machine, on all ranks): no shared memory.
std::shared_ptr<JobBoard> make_job_board(const MpiComm& world);

class Board {
 public:
  // Collective over `comm`. Errors (ErrorKind::machine, on all ranks): no shared memory.
  Board(const MpiComm& comm, std::shared_ptr<JobBoard> job);

  const PeerWatch& peers() const { return peers_; }
  const std::shared_ptr<JobBoard>& job() const { return job_; }
  // World ranks in the order of the communicator's.
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  // Collective calls are counted apart from meetings before agreements: see Communicator::meet().
  enum Count { kCalls, kMeetings };
  // Enters the next one; gives its number.
  uint64_t arrive(Count count = kCalls);
  // World ranks that have not entered number `epoch`.
  std::vector<int> behind(uint64_t epoch, Count count = kCalls) const;
  bool all_arrived(uint64_t epoch, Count count = kCalls) const;

 private:
  struct alignas(64) Cell {
    std::atomic<uint64_t> arrivals[2];  // by Count
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

  Cell& cell(int rank) const;

  SharedMemory memory_;
  std::shared_ptr<JobBoard> job_;
  std::vector<int> world_ranks_;
  PeerWatch peers_;
  int rank_;
  uint64_t arrivals_[2] = {};
};

}  // namespace flotilla::comm
