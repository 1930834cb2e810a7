#include "comm/wait.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

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
// A longer time between two looks is one of suspension.
constexpr auto kLongestGap = 1s;

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

PeerWatch::PeerWatch(std::shared_ptr<JobBoard> job, const std::vector<int>& world_ranks)
    : job_(std::move(job)) {
  crowded_ = static_cast<int64_t>(world_ranks.size()) > usable_cores();
  std::copy_if(world_ranks.begin(), world_ranks.end(), std::back_inserter(peers_),
               [&](int rank) { return rank != self(); });
  std::copy_if(peers_.begin(), peers_.end(), std::back_inserter(seen_),
               [&](int rank) { return is_alive(job_->process(rank)); });
}

std::vector<int> PeerWatch::dead() const {
  std::vector<int> dead;
  std::copy_if(seen_.begin(), seen_.end(), std::back_inserter(dead),
               [&](int rank) { return !is_alive(job_->process(rank)); });
  return dead;
}

uint64_t PeerWatch::progress() const noexcept {
  uint64_t sum = 0;
  for (const int rank : peers_) sum += job_->progress(rank);
  return sum;
}

Pause::Pause(bool crowded) : spins_(crowded ? 0 : kSpins), last_look_(Clock::now()) {}

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
  const auto passed = now - last_look_;
  if (passed < kLookEvery) return false;
  waited_s_ +=
      std::chrono::duration<double>(std::min<Clock::duration>(passed, kLongestGap)).count();
  last_look_ = now;
  return true;
}

void fail_dead(const PeerWatch& peers, const WaitLimit& limit, const std::vector<int>& dead) {
  fail(ErrorKind::communication,
       fmt::format("{} (seen by rank {} in {})", gone_text(peers.job(), dead), peers.self(),
                   limit.what));
}

void fail_late(const PeerWatch& peers, const WaitLimit& limit, const std::vector<int>& missing,
               double waited_s) {
  const std::string who = missing.empty() ? "the ranks came, but the data did not"
                                          : ranks_text(missing) + " did not come";
  fail(
      ErrorKind::communication,
      fmt::format("{}: {} within {:.3g} s{} (seen by rank {}, after {:.3g} s)", limit.what, who,
                  limit.timeout_s, last_phases_text(peers.job(), missing), peers.self(), waited_s));
}

}  // namespace flotilla::comm
