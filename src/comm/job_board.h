// The notice board of a job, in shared memory: where each rank is (phase, step), whether it lives
// (a heartbeat) and gets on (progress), and whether somebody has reported the job's end. It is what
// the survivors say of a rank that dies, stops or hangs. Written without locks, so that a rank that
// dies in the middle leaves a board that the others can read. Private to comm/.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/process.h"
#include "comm/shared_memory.h"

namespace flotilla::comm {

class JobBoard {
 public:
  static int64_t bytes_for(int world_size);
  // `memory`: new (zeroed) and shared by all ranks, bytes_for(ranks.size()). `ranks` in their
  // order.
  JobBoard(SharedMemory memory, std::vector<Process> ranks, int self);

  int self() const { return self_; }
  int world_size() const { return static_cast<int>(ranks_.size()); }
  const Process& process(int rank) const { return ranks_[static_cast<size_t>(rank)]; }

  // Of this rank. One thread (the compute thread) notes; another one (the watchdog) beats.
  void note_phase(std::string_view phase) noexcept;  // cut to what the board holds
  void note_progress() noexcept;
  void note_waiting(bool waiting) noexcept;  // for other ranks
  void beat() noexcept;
  // This rank ends regularly: it is missed by nobody from now on.
  void leave() noexcept;

  std::string phase(int rank) const;  // "" before the first note_phase()
  uint64_t progress(int rank) const noexcept;
  bool is_waiting(int rank) const noexcept;
  uint64_t beats(int rank) const noexcept;
  bool has_left(int rank) const noexcept;

  // True for the first rank that asks, which reports the end of the job for all.
  bool claim_report(int exit_code) noexcept;
  // The exit code of whoever claimed the report; 0: nobody has.
  int verdict() const noexcept;

 private:
  static constexpr size_t kPhaseWords = 16;
  struct alignas(64) Cell {
    std::atomic<uint64_t> beats;
    std::atomic<uint64_t> progress;
    std::atomic<uint32_t> left;
    std::atomic<uint32_t> waiting;
    std::atomic<uint32_t> version;  // of `phase`; odd while it is being written
    std::atomic<uint64_t> phase[kPhaseWords];
  };
  struct alignas(64) Head {
    std::atomic<int32_t> verdict;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free &&
                std::atomic<uint32_t>::is_always_lock_free &&
                std::atomic<int32_t>::is_always_lock_free);

  Head& head() const;
  Cell& cell(int rank) const;

  SharedMemory memory_;
  std::vector<Process> ranks_;
  int self_;
};

// `; its last phase was "stage_1, step 2 of 8"`, for several ranks in their order; "" when none of
// them has noted one.
std::string last_phases_text(const JobBoard& board, const std::vector<int>& ranks);
// `rank 2 ended (process 4711); its last phase was ...`
std::string gone_text(const JobBoard& board, const std::vector<int>& ranks);
// "rank 3", "ranks 1, 2".
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace flotilla::comm
