#include "base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace flotilla {
namespace {

constexpr int64_t kBarWidth = 28;
// Without a terminal: a line at the start, at the end and at most every this many seconds.
constexpr double kLineInterval_s = 5.0;

}  // namespace

Progress::Progress(std::string title, int64_t total, bool enabled, int64_t done)
    : title_(std::move(title)),
      total_(std::max<int64_t>(total, 1)),
      enabled_(enabled && log::enabled(log::Level::info)),
      terminal_(isatty(STDERR_FILENO) == 1),
      done_(done),
      done_before_(done),
      start_(std::chrono::steady_clock::now()),
      last_line_(start_) {
  if (enabled_ && terminal_) draw(done_, false);
}

Progress::~Progress() {
  // An unfinished bar (an exception) ends its line, so that the error starts on a new one.
  if (enabled_ && terminal_ && done_ < total_) std::fputc('\n', stderr);
}

double Progress::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

double Progress::eta_s() const {
  const int64_t done_here = done_ - done_before_;
  if (done_here <= 0) return 0;
  return elapsed_s() / static_cast<double>(done_here) * static_cast<double>(total_ - done_);
}

void Progress::update(int64_t done) {
  done_ = std::min(done, total_);
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  const bool last = done_ == total_;
  if (!terminal_) {
    if (!last && std::chrono::duration<double>(now - last_line_).count() < kLineInterval_s) return;
    last_line_ = now;
  }
  draw(done_, last);
}

void Progress::draw(int64_t done, bool last) {
  const std::string eta = last || done == done_before_
                              ? human_duration(elapsed_s())
                              : fmt::format("ETA {}", human_duration(eta_s()));
  if (!terminal_) {
    log::info("progress", "{} {}/{} ({})", title_, done, total_, eta);
    return;
  }
  const int64_t filled = kBarWidth * done / total_;
  fmt::print(stderr, "\r\x1b[K{:<14} [{}{}] {}/{}  {}{}", title_, std::string(filled, '='),
             std::string(kBarWidth - filled, ' '), done, total_, eta, last ? "\n" : "");
  std::fflush(stderr);
}

}  // namespace flotilla
