// Why a run stops before its end: a signal to any rank, a stop file, a limit on time. Each rank
// looks at what concerns it, and at every safe point all agree, so that they stop together.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "config/job.h"
#include "pipeline/ranks.h"

namespace flotilla::pipeline {

// In the place of a signal's number: somebody asked over a socket.
inline constexpr int kCancelRequest = 1004;
inline constexpr int kEndRequest = 1005;

// What the program knows of the world outside; app/ fills it in.
struct StopSources {
  using Clock = std::chrono::steady_clock;
  // The number of the signal that asks this process to stop, or one of the requests above; 0: none.
  // May be empty.
  std::function<int()> signal = {};
  Clock::time_point start = Clock::now();           // limits.max_hours counts from here
  std::optional<Clock::time_point> allocation_end;  // when a batch system takes the machine away
};

class StopWatch {
 public:
  StopWatch(config::Limits limits, StopSources sources);

  // At a safe point, on all ranks alike: the reason to stop, as text ("SIGTERM"); nothing: go on.
  // Collective, one small reduction on the host. A limit on time is kept with the longest gap
  // between two safe points so far in mind: the last one that comes early enough stops the run.
  // Errors (ErrorKind::communication): SIGTERM, but the process of another rank is gone: a launcher
  // cleans up after a fault.
  std::optional<std::string> agreed_reason(const Ranks& ranks);
  // Of this rank alone: where its error ends the work of the others in good order. Not collective.
  std::optional<std::string> own_reason(const Ranks& ranks);

 private:
  using Clock = StopSources::Clock;

  int64_t own_wish(const Ranks& ranks);
  int64_t look(bool is_driver);
  bool too_close(std::optional<Clock::time_point> end) const;
  std::string text_of(int64_t wish) const;

  config::Limits limits_;
  StopSources sources_;
  std::optional<Clock::time_point> end_;  // by limits.max_hours
  std::optional<Clock::time_point> last_;
  Clock::duration longest_gap_{0};
};

}  // namespace flotilla::pipeline
