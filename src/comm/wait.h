// Waiting for other ranks: spin briefly, then give the core away, and look from time to time
// whether the peers' processes still live and whether the deadline has passed. Every wait of comm/
// goes through wait_until(), so no rank hangs on one that is gone. What happens while a rank does
// not wait: watchdog.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/job_board.h"

namespace flotilla::comm {

// The processes of the ranks of a communicator.
class PeerWatch {
 public:
  // `world_ranks` with this one. Those whose process cannot be seen from here (process namespaces)
  // are not looked at.
  PeerWatch(std::shared_ptr<JobBoard> job, const std::vector<int>& world_ranks);

  // World ranks.
  std::vector<int> dead() const;
  int self() const { return job_->self(); }
  const JobBoard& job() const { return *job_; }
  // More ranks than cores: a rank that spins keeps another one from working.
  bool crowded() const { return crowded_; }

  // This rank gets on: its peers' patience with it begins anew.
  void note_progress() const noexcept { job_->note_progress(); }
  // Says so to whoever asks what this rank does, until the object goes.
  class Waiting {
   public:
    explicit Waiting(const PeerWatch& peers) : job_(*peers.job_) { job_.note_waiting(true); }
    ~Waiting() { job_.note_waiting(false); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    JobBoard& job_;
  };
  // Grows when any peer gets on.
  uint64_t progress() const noexcept;

 private:
  std::shared_ptr<JobBoard> job_;
  std::vector<int> peers_;  // all but this rank
  std::vector<int> seen_;   // of these, whose process can be looked at
  bool crowded_ = false;
};

enum class Deadline {
  fixed,          // from the begin of the wait
  from_progress,  // from the last time that a peer got on: peers may work for long
};

struct WaitLimit {
  std::string_view what;  // "all-gather", "head exchange 17"
  double timeout_s = 0;
  Deadline deadline = Deadline::fixed;
};

// The pauses of one wait.
class Pause {
 public:
  explicit Pause(bool crowded);
  // Gives time to others; longer and longer.
  void next();
  // True about every 20 ms.
  bool look_due();
  // Up to the last look. Time in which this process was suspended hardly counts: its peers were
  // suspended with it.
  double waited_s() const { return waited_s_; }
  void begin_anew() { waited_s_ = 0.0; }

 private:
  using Clock = std::chrono::steady_clock;
  int64_t turns_ = 0;
  int64_t spins_;
  double waited_s_ = 0.0;
  Clock::time_point last_look_;
};

// Errors (ErrorKind::communication).
[[noreturn]] void fail_dead(const PeerWatch& peers, const WaitLimit& limit,
                            const std::vector<int>& dead);
[[noreturn]] void fail_late(const PeerWatch& peers, const WaitLimit& limit,
                            const std::vector<int>& missing, double waited_s);

// Returns when `ready()`. `missing()` gives the world ranks that have not come yet.
// Errors (ErrorKind::communication): a peer's process is gone, or the deadline has passed.
template <typename Ready, typename Missing>
void wait_until(const PeerWatch& peers, const WaitLimit& limit, Ready&& ready, Missing&& missing) {
  if (ready()) return;
  const PeerWatch::Waiting waiting(peers);
  Pause pause(peers.crowded());
  uint64_t progress = peers.progress();
  while (!ready()) {
    pause.next();
    if (!pause.look_due()) continue;
    const uint64_t progress_now = peers.progress();
    if (limit.deadline == Deadline::from_progress && progress_now != progress) pause.begin_anew();
    progress = progress_now;
    const auto dead = peers.dead();
    const bool late = pause.waited_s() > limit.timeout_s;
    // What a peer did before it went still counts, so look once more.
    if ((dead.empty() && !late) || ready()) continue;
    if (!dead.empty()) fail_dead(peers, limit, dead);
    fail_late(peers, limit, missing(), pause.waited_s());
  }
}

}  // namespace flotilla::comm
