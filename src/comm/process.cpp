#include "comm/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <sstream>
#include <string>

namespace flotilla::comm {
namespace {

struct Stat {
  char state = 'X';  // as /proc says: R, S, D, T (stopped), t (by a debugger), Z (zombie), X (dead)
  int64_t start_ticks = -1;
};

// Without streams: reading of a process that ends at that moment fails, and they would throw.
std::string read_text(const std::string& path) {
  std::array<char, 1024> text;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return "";
  const ssize_t bytes = ::read(fd, text.data(), text.size());
  ::close(fd);
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(bytes, 0))};
}

Stat stat_of(pid_t pid) {
  const std::string text = read_text(fmt::format("/proc/{}/stat", pid));
  const size_t name_end = text.rfind(')');  // the name in brackets may hold blanks and brackets
  if (name_end == std::string::npos) return {};
  std::istringstream fields(text.substr(name_end + 1));
  Stat found;
  fields >> found.state;  // field 3
  std::string skipped;
  for (int i = 4; i < 22; ++i) fields >> skipped;
  fields >> found.start_ticks;  // field 22
  return found;
}

ProcessState state_of(const Process& process, const Stat& now) {
  if (now.start_ticks < 0) {  // no such process, or this one has run out of files
    return ::kill(process.pid, 0) != 0 && errno == ESRCH ? ProcessState::gone : ProcessState::works;
  }
  if (now.start_ticks != process.start_ticks || now.state == 'Z' || now.state == 'X')
    return ProcessState::gone;
  return now.state == 'T' || now.state == 't' ? ProcessState::stopped : ProcessState::works;
}

}  // namespace

Process this_process(int world_rank) {
  const pid_t pid = getpid();
  return {world_rank, pid, stat_of(pid).start_ticks};
}

ProcessState look_at(pid_t process) {
  const Stat now = stat_of(process);
  return state_of({0, process, now.start_ticks}, now);
}

ProcessState look_at(const Process& process) { return state_of(process, stat_of(process.pid)); }

}  // namespace flotilla::comm
