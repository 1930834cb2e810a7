#include "comm/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "base/job_report.h"
#include "base/log.h"
#include "base/temp_registry.h"
#include "comm/quiet_thread.h"

namespace flotilla::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kBeatEvery = 100ms;
constexpr double kMaxGapSeconds = 1.0;
// For the rank that reports to print its line, and for MPI_Abort to end all ranks.
constexpr double kLastWordsSeconds = 3.0;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void SilenceMeter::look(double now_s, std::span<const uint64_t> beats) {
  const double passed_s = last_look_s_ < 0.0 ? 0.0 : std::min(now_s - last_look_s_, kMaxGapSeconds);
  last_look_s_ = now_s;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const bool beats_on = beats[r] != ranks_[r].beats;
    ranks_[r] = {beats[r], beats_on ? 0.0 : ranks_[r].silent_s + passed_s};
  }
}

Watchdog::Watchdog(std::shared_ptr<JobBoard> board, double silence_limit_s)
    : board_(std::move(board)), silence_limit_s_(silence_limit_s) {
  for (int r = 0; r < board_->world_size(); ++r)
    visible_.push_back(r != board_->self() && is_alive(board_->process(r)));
  thread_ = start_quietly([this] { run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::run() {
  SilenceMeter silence(board_->world_size());
  do {
    board_->beat();
    look(silence);
  } while (sleep());
}

bool Watchdog::sleep() {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, kBeatEvery, [this] { return stop_; });
}

void Watchdog::look(SilenceMeter& silence) {
  if (board_->verdict() != 0) {
    if (verdict_seen_s_ < 0.0) verdict_seen_s_ = now_s();
    if (now_s() - verdict_seen_s_ > kLastWordsSeconds) end("");
    return;
  }
  // Twice in a row: when a launcher ends all ranks, this one has gone the same way by then.
  const auto now_gone = gone();
  if (!now_gone.empty() && !gone_.empty()) return end(gone_text(*board_, now_gone));
  gone_ = now_gone;

  std::vector<uint64_t> beats;
  for (int r = 0; r < board_->world_size(); ++r) beats.push_back(board_->beats(r));
  silence.look(now_s(), beats);
  for (int r = 0; r < board_->world_size(); ++r) {
    if (r == board_->self() || board_->has_left(r) || silence.silent_s(r) < silence_limit_s_)
      continue;
    const bool stopped = look_at(board_->process(r)) == ProcessState::stopped;
    end(fmt::format("rank {} has given no sign of life for {:.0f} s (process {}{}){}", r,
                    silence.silent_s(r), board_->process(r).pid,
                    stopped ? " is stopped, by SIGSTOP or a debugger" : "",
                    last_phases_text(*board_, {r})));
  }
}

std::vector<int> Watchdog::gone() const {
  std::vector<int> ranks;
  for (int r = 0; r < board_->world_size(); ++r) {
    if (visible_[static_cast<size_t>(r)] && !board_->has_left(r) && !is_alive(board_->process(r)))
      ranks.push_back(r);
  }
  return ranks;
}

void Watchdog::end(const std::string& text) {
  constexpr auto kKind = ErrorKind::communication;
  if (!text.empty()) {
    // Somebody else is about to print: leave time for that.
    if (!board_->claim_report(exit_code(kKind))) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kLastWordsSeconds));
    } else {
      log::error(to_string(kKind), "{}", text);
      send_last_words(kKind, text);
    }
  }
  remove_temporaries();
  _exit(board_->verdict());
}

}  // namespace flotilla::comm
