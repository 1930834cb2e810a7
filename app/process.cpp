#include "app/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "base/error.h"
#include "base/temp_registry.h"

namespace flotilla::app {
namespace {

// The results of a run are a few lines at its end, those of a benchmark a table.
constexpr size_t kResultBytes = 1 << 20;

constexpr int64_t kSameSignalNs = 200'000'000;

// What the handler knows; signals reach any thread.
std::atomic<bool> holds_first{false};
std::atomic<int> first_signal{0};
std::atomic<int64_t> first_ns{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
              std::atomic<int64_t>::is_always_lock_free);

int64_t monotonic_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// True when this signal needs no more than to be remembered. Async-signal-safe.
bool hold(int signal) noexcept {
  if (!holds_first.load()) return false;
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) {
    first_ns.store(monotonic_ns());
    return true;
  }
  const int64_t since = first_ns.load();  // 0: the first one is being handled right now
  return since == 0 || monotonic_ns() - since < kSameSignalNs;
}

// Async-signal-safe. The raised signal waits until this returns and then ends the process.
void handle_end(int signal) {
  if (hold(signal)) return;
  remove_temporaries();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void watch(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  if (action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = handle_end;
  action.sa_flags = SA_RESTART;  // a held signal is to disturb no read or write
  ::sigaction(signal, &action, nullptr);
}

void fill_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // Open for the wrong direction; open() takes the lowest free number, which is this one.
    (void)!::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace

void set_up_process() {
  fill_standard_streams();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) watch(signal);
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);
  std::setvbuf(stdout, nullptr, _IOFBF, kResultBytes);
}

void hold_first_signal() { holds_first.store(true); }

void leave_signal(int signal) noexcept {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) first_ns.store(monotonic_ns());
}

int held_signal() noexcept { return first_signal.load(); }

void flush_results() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  fail(ErrorKind::output,
       fmt::format("cannot write the results to standard output: {}", std::strerror(errno)));
}

}  // namespace flotilla::app
