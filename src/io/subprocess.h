// Other programs (ffmpeg), started by argument list: no shell, so any byte may stand in a path.
// The child gets a group of its own (a Ctrl-C in the terminal does not reach it), gets a signal
// when the thread that started it dies, inherits only its three standard streams, and is killed
// when its Process goes away.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace flotilla::io {

class Process {
 public:
  // argv[0] is the path of the program. Standard input is a pipe; standard output goes to a pipe
  // when `read_output`, else to nowhere; standard error is kept in memory. The thread that calls
  // this must outlive the child, which gets `death_signal` otherwise. `environment`: entries
  // "NAME=value"; empty: that of this process. Errors: ErrorKind::machine, when it cannot start.
  Process(const std::vector<std::string>& argv, bool read_output, int death_signal = SIGKILL,
          const std::vector<std::string>& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Writes all of `bytes` to its standard input. False: the child has closed its end (see
  // errors()). Errors: ErrorKind::output, when nothing moves for `stall_s` seconds. Raises no
  // SIGPIPE.
  bool write(std::span<const uint8_t> bytes, double stall_s);
  void close_input() noexcept;
  // Feeds `input` and collects the output, both at once; false when `limit_s` ran out.
  bool exchange(std::span<const uint8_t> input, std::vector<uint8_t>& output, double limit_s);
  // Status as from waitpid(), or nothing when it still runs after `limit_s` seconds.
  std::optional<int> wait(double limit_s);
  void kill() noexcept;
  // What it has written to standard error: the first 2,000 bytes, trimmed, control characters
  // visible.
  std::string errors() const;
  pid_t id() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  int errors_ = -1;
  std::optional<int> status_;
};

struct ProcessResult {
  int status = 0;  // as from waitpid()
  std::vector<uint8_t> output;
  std::string errors;
};

// Runs a program to its end. Errors: ErrorKind::machine, when it cannot start or runs longer than
// `limit_s`.
ProcessResult run_process(const std::vector<std::string>& argv, std::span<const uint8_t> input,
                          double limit_s);

// "exit code 1", "killed by signal 9".
std::string describe_status(int status);

}  // namespace flotilla::io
