// Waiting for other ranks: spin briefly, then give the core away, and look from time to time
// whether the peers' processes still live and whether the deadline has passed. Every wait of comm/
// goes through wait_until(), so no rank hangs on one that is gone.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::comm {

// One process of this machine. The start time tells it from a later one with the same id.
struct Process {
  int world_rank = 0;
  pid_t pid = 0;
  int64_t start_ticks = 0;  // since boot; field 22 of /proc/<pid>/stat
};
Process this_process(int world_rank);
bool is_alive(const Process& process);

// The processes of the ranks of a communicator.
class PeerWatch {
 public:
  PeerWatch() = default;
  // `ranks` with this one. Those whose process cannot be seen from here (process namespaces) are
  // not watched.
  PeerWatch(std::vector<Process> ranks, int self_world_rank);

  std::vector<Process> dead() const;
  int self() const { return self_; }
  // More ranks than cores: a rank that spins keeps another one from working.
  bool crowded() const { return crowded_; }

 private:
  std::vector<Process> peers_;
  int self_ = 0;
  bool crowded_ = false;
};

// "rank 3", "ranks 1, 2".
std::string ranks_text(const std::vector<int>& ranks);

struct WaitLimit {
  std::string_view what;  // "all-gather", "head exchange 17"
  double timeout_s = 0;
};

// The pauses of one wait.
class Pause {
 public:
  explicit Pause(bool crowded);
  // Gives time to others; longer and longer.
  void next();
  // True about every 20 ms.
  bool look_due();
  double elapsed_s() const;

 private:
  using Clock = std::chrono::steady_clock;
  int64_t turns_ = 0;
  int64_t spins_;
  Clock::time_point start_;
  Clock::time_point last_look_;
};

// Errors (ErrorKind::communication).
[[noreturn]] void fail_dead(const PeerWatch& peers, const WaitLimit& limit,
                            const std::vector<Process>& dead);
[[noreturn]] void fail_late(const PeerWatch& peers, const WaitLimit& limit,
                            const std::vector<int>& missing, double elapsed_s);

// Returns when `ready()`. `missing()` gives the world ranks that have not come yet.
// Errors (ErrorKind::communication): a peer's process is gone, or the deadline has passed.
template <typename Ready, typename Missing>
void wait_until(const PeerWatch& peers, const WaitLimit& limit, Ready&& ready, Missing&& missing) {
  Pause pause(peers.crowded());
  while (!ready()) {
    pause.next();
    if (!pause.look_due()) continue;
    const auto dead = peers.dead();
    const bool late = pause.elapsed_s() > limit.timeout_s;
    // What a peer did before it went still counts, so look once more.
    if ((dead.empty() && !late) || ready()) continue;
    if (!dead.empty()) fail_dead(peers, limit, dead);
    fail_late(peers, limit, missing(), pause.elapsed_s());
  }
}

}  // namespace flotilla::comm
