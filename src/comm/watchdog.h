// The thread of each rank that watches the other ranks while this one computes, when it would see
// nothing of them for minutes. It never calls MPI or Torch. It ends the process with exit code 6
// when a peer's process is gone, or when a peer's own watchdog has been silent for too long: that
// process is stopped, or its machine is out of breath. (A rank whose watchdog beats but whose
// compute thread hangs is found by the deadlines of whoever waits for it: wait.h.) One rank reports
// for all. Once somebody has, whatever the fault, every watchdog ends its process a little later,
// so that no rank lives on when MPI_Abort hangs.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "comm/job_board.h"

namespace flotilla::comm {

// How long each rank has been silent. Counts only time in which this process itself was running: a
// job that is suspended as a whole and goes on later misses nobody.
class SilenceMeter {
 public:
  explicit SilenceMeter(int num_ranks) : ranks_(static_cast<size_t>(num_ranks)) {}

  // At `now_s` of any clock, often: more than a second between two looks counts as one second.
  void look(double now_s, std::span<const uint64_t> beats);
  double silent_s(int rank) const { return ranks_[static_cast<size_t>(rank)].silent_s; }

 private:
  struct Rank {
    uint64_t beats = 0;
    double silent_s = 0.0;
  };
  std::vector<Rank> ranks_;
  double last_look_s_ = -1.0;
};

class Watchdog {
 public:
  // Starts the thread. A peer may be silent for `silence_limit_s`.
  Watchdog(std::shared_ptr<JobBoard> board, double silence_limit_s);
  // Stops it. Peers take the silence for a fault unless this rank has left the board.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void run();
  // False when the thread has to stop.
  bool sleep();
  void look(SilenceMeter& silence);
  std::vector<int> gone() const;
  // Prints `text` unless another rank has reported; then the process ends.
  [[noreturn]] void end(const std::string& text);

  std::shared_ptr<JobBoard> board_;
  double silence_limit_s_;
  std::vector<bool> visible_;  // peers whose process this one can see
  std::vector<int> gone_;      // at the last look
  double verdict_seen_s_ = -1.0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace flotilla::comm
