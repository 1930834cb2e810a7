#include "pipeline/stop.h"

#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <utility>

#include "comm/wait.h"

namespace flotilla::pipeline {
namespace {

// Wishes beyond the numbers of signals; the largest of all ranks counts.
constexpr int64_t kNone = 0;
constexpr int64_t kAllocationEnd = 1001;
constexpr int64_t kMaxHours = 1002;
constexpr int64_t kStopFile = 1003;  // 1004, 1005: kCancelRequest, kEndRequest

// A step may take longer than those before it.
constexpr double kGapFactor = 1.5;

std::string signal_name(int64_t signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGHUP:
      return "SIGHUP";
    default:
      return fmt::format("signal {}", signal);
  }
}

}  // namespace

StopWatch::StopWatch(config::Limits limits, StopSources sources)
    : limits_(std::move(limits)), sources_(std::move(sources)) {
  if (!limits_.max_hours) return;
  const std::chrono::duration<double, std::ratio<3600>> hours(*limits_.max_hours);
  end_ = sources_.start + std::chrono::duration_cast<Clock::duration>(hours);
}

std::optional<std::string> StopWatch::agreed_reason(const Ranks& ranks) {
  int64_t wish = own_wish(ranks);
  if (ranks.context != nullptr) wish = ranks.context->world().all_max(wish);
  return wish == kNone ? std::nullopt : std::optional(text_of(wish));
}

std::optional<std::string> StopWatch::own_reason(const Ranks& ranks) {
  const int64_t wish = own_wish(ranks);
  return wish == kNone ? std::nullopt : std::optional(text_of(wish));
}

int64_t StopWatch::own_wish(const Ranks& ranks) {
  const int64_t wish = look(ranks.is_driver());
  if (wish == SIGTERM && ranks.context != nullptr) {
    const comm::PeerWatch& peers = ranks.context->world().peers();
    if (const auto dead = peers.dead(); !dead.empty())
      comm::fail_dead(peers, {.what = "agreement to stop"}, dead);
  }
  return wish;
}

int64_t StopWatch::look(bool is_driver) {
  const auto now = Clock::now();
  if (last_) longest_gap_ = std::max(longest_gap_, now - *last_);
  last_ = now;
  if (const int signal = sources_.signal ? sources_.signal() : 0; signal != 0) return signal;
  if (!is_driver) return kNone;
  std::error_code ignored;
  if (!limits_.stop_file.empty() && std::filesystem::exists(limits_.stop_file, ignored))
    return kStopFile;
  if (too_close(end_)) return kMaxHours;
  if (too_close(sources_.allocation_end)) return kAllocationEnd;
  return kNone;
}

bool StopWatch::too_close(std::optional<Clock::time_point> end) const {
  return end &&
         *last_ + std::chrono::duration_cast<Clock::duration>(kGapFactor * longest_gap_) >= *end;
}

std::string StopWatch::text_of(int64_t wish) const {
  switch (wish) {
    case kStopFile:
      return fmt::format("the stop file \"{}\"", limits_.stop_file.string());
    case kMaxHours:
      return fmt::format("limits.max_hours ({})", limits_.max_hours.value_or(0));
    case kAllocationEnd:
      return "the end of the batch job";
    case kCancelRequest:
      return "a request to cancel";
    case kEndRequest:
      return "a request to end the server";
    default:
      return signal_name(wish);
  }
}

}  // namespace flotilla::pipeline
