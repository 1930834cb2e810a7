#include "app/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/temp_registry.h"

namespace flotilla::app {
namespace {

// The results of a run are a few lines at its end, those of a benchmark a table.
constexpr size_t kResultBytes = 1 << 20;

// Async-signal-safe. SA_RESETHAND has restored the default action by now; the raised signal waits
// until this returns and then ends the process.
void end_by_signal(int signal) {
  remove_temporaries();
  ::raise(signal);
}

void handle_end(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  if (action.sa_handler == SIG_IGN) return;
  action = {};
  action.sa_handler = end_by_signal;
  action.sa_flags = SA_RESETHAND;
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
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) handle_end(signal);
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);
  std::setvbuf(stdout, nullptr, _IOFBF, kResultBytes);
}

void flush_results() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  fail(ErrorKind::output,
       fmt::format("cannot write the results to standard output: {}", std::strerror(errno)));
}

}  // namespace flotilla::app
