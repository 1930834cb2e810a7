#include "comm/wait.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "base/error.h"

namespace flotilla::comm {
namespace {

using namespace std::chrono_literals;

// A quarter of a millisecond: longer than an exchange of small tensors takes, shorter than a
// scheduler's turn.
constexpr int64_t kSpins = 4000;
constexpr int64_t kYields = 2000;
constexpr auto kSleep = 50us;
constexpr auto kLookEvery = 20ms;

struct ProcessState {
  char state = 'X';  // as /proc says: R, S, D, Z (zombie), X (dead), ...
  int64_t start_ticks = -1;
};

ProcessState state_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t name_end = text.rfind(')');  // the name in brackets may hold blanks and brackets
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  ProcessState found;
  fields >> found.state;  // field 3
  std::string skipped;
  for (int i = 4; i < 22; ++i) fields >> skipped;
  fields >> found.start_ticks;  // field 22
  return found;
}

// A single core is taken for the binding of a launcher, which gave each rank one of its own.
int64_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const bool known = sched_getaffinity(0, sizeof(cores), &cores) == 0;
  return known && CPU_COUNT(&cores) > 1 ? CPU_COUNT(&cores) : sysconf(_SC_NPROCESSORS_ONLN);
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Process this_process(int world_rank) {
  const pid_t pid = getpid();
  return {world_rank, pid, state_of(pid).start_ticks};
}

bool is_alive(const Process& process) {
  const ProcessState now = state_of(process.pid);
  return now.start_ticks == process.start_ticks && now.state != 'Z' && now.state != 'X';
}

PeerWatch::PeerWatch(std::vector<Process> ranks, int self_world_rank) : self_(self_world_rank) {
  crowded_ = static_cast<int64_t>(ranks.size()) > usable_cores();
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(peers_),
               [&](const Process& peer) { return peer.world_rank != self_ && is_alive(peer); });
}

std::vector<Process> PeerWatch::dead() const {
  std::vector<Process> dead;
  std::copy_if(peers_.begin(), peers_.end(), std::back_inserter(dead),
               [](const Process& peer) { return !is_alive(peer); });
  return dead;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

Pause::Pause(bool crowded)
    : spins_(crowded ? 0 : kSpins), start_(Clock::now()), last_look_(start_) {}

void Pause::next() {
  ++turns_;
  if (turns_ <= spins_) return relax();
  if (turns_ <= spins_ + kYields) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(kSleep);
  }
}

bool Pause::look_due() {
  if (turns_ <= spins_) return false;
  const auto now = Clock::now();
  if (now - last_look_ < kLookEvery) return false;
  last_look_ = now;
  return true;
}

double Pause::elapsed_s() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void fail_dead(const PeerWatch& peers, const WaitLimit& limit, const std::vector<Process>& dead) {
  std::vector<int> ranks;
  std::vector<pid_t> pids;
  for (const auto& process : dead) {
    ranks.push_back(process.world_rank);
    pids.push_back(process.pid);
  }
  fail(ErrorKind::communication,
       fmt::format("{} ended (process {}) while rank {} waited in {}", ranks_text(ranks),
                   fmt::join(pids, ", "), peers.self(), limit.what));
}

void fail_late(const PeerWatch& peers, const WaitLimit& limit, const std::vector<int>& missing,
               double elapsed_s) {
  const std::string who = missing.empty() ? "the ranks came, but the data did not"
                                          : ranks_text(missing) + " did not come";
  fail(ErrorKind::communication,
       fmt::format("{}: {} within {:.3g} s (seen by rank {}, after {:.3g} s)", limit.what, who,
                   limit.timeout_s, peers.self(), elapsed_s));
}

}  // namespace flotilla::comm
