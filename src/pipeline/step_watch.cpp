#include "pipeline/step_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/temp_registry.h"
#include "comm/quiet_thread.h"

namespace flotilla::pipeline {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLookEvery = 250ms;
// A longer time between two looks is one of suspension.
constexpr double kLongestGapSeconds = 1.0;

}  // namespace

StepWatch::~StepWatch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void StepWatch::begin(std::string place, double slowest_s) {
  {
    const std::lock_guard lock(mutex_);
    watches_ = true;
    worked_s_ = 0;
    slowest_s_ = slowest_s;
    place_ = std::move(place);
  }
  if (!thread_.joinable()) thread_ = comm::start_quietly([this] { run(); });
}

void StepWatch::end() {
  const std::lock_guard lock(mutex_);
  watches_ = false;
}

void StepWatch::run() {
  auto last = Clock::now();
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kLookEvery, [this] { return stop_; })) {
    const auto now = Clock::now();
    const std::chrono::duration<double> passed = now - std::exchange(last, now);
    if (!watches_ || (ranks_.context != nullptr && ranks_.context->is_waiting())) continue;
    worked_s_ += std::min(passed.count(), kLongestGapSeconds);
    if (worked_s_ > std::max(least_s_, kSlowestTimes * slowest_s_)) end_process(worked_s_);
  }
}

void StepWatch::end_process(double worked_s) const {
  constexpr auto kKind = ErrorKind::communication;
  const int code = exit_code(kKind);
  if (ranks_.context == nullptr || ranks_.context->claim_report(code)) {
    log::error(
        to_string(kKind),
        "rank {} hangs in {}: at work for {:.0f} s, where the slowest one before took {:.3g} "
        "s (process {})",
        ranks_.rank(), place_, worked_s, slowest_s_, ::getpid());
  }
  remove_temporaries();
  ::_exit(code);
}

}  // namespace flotilla::pipeline
