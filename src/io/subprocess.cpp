#include "io/subprocess.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::io {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kErrorBytes = 2000;

// Owns a descriptor until it is released.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

[[noreturn]] void fail_start(std::string_view program) {
  fail(ErrorKind::machine, fmt::format("cannot start \"{}\": {}", program, std::strerror(errno)));
}

std::pair<Descriptor, Descriptor> make_pipe(std::string_view program) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_start(program);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// A descriptor above the standard three: the child's dup2 calls must not overwrite each other.
Descriptor above_standard(Descriptor fd) {
  if (fd.get() < 0 || fd.get() > STDERR_FILENO) return fd;
  return Descriptor(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

// A write to a pipe without a reader raises SIGPIPE in this thread. It is held back while this
// object lives and taken off again, whatever the program does with the signal otherwise.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &old_mask_);
  }
  ~NoSigpipe() {
    if (!was_pending_) {
      const timespec now{};
      while (sigtimedwait(&sigpipe_, nullptr, &now) == -1 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t sigpipe_{};
  sigset_t old_mask_{};
  bool was_pending_ = false;
};

struct ChildPlan {
  char* const* argv;
  char* const* environment;
  int input;
  int output;
  int errors;
  pid_t parent;
  int death_signal;
};

// The child between vfork and exec: it borrows the parent's memory, so only system calls here.
[[noreturn]] void become(const ChildPlan& plan, volatile int* error) {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, plan.death_signal);
  // The parent may have died before the line above.
  if (::getppid() != plan.parent) ::_exit(127);
  const bool wired = ::dup2(plan.input, STDIN_FILENO) >= 0 &&
                     ::dup2(plan.output, STDOUT_FILENO) >= 0 &&
                     ::dup2(plan.errors, STDERR_FILENO) >= 0;
  // Connections of MPI and files of others that lack the close-on-exec mark.
  ::close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  if (wired) ::execve(plan.argv[0], plan.argv, plan.environment);
  *error = errno;
  ::_exit(127);
}

// vfork, not fork: copying the page tables of a rank with all its weights takes seconds, and memory
// registered for MPI must not be marked for copying. Signals wait, so no handler runs in the child.
__attribute__((noinline)) pid_t start(const ChildPlan& plan, volatile int* error) {
  sigset_t all;
  sigset_t old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const pid_t pid = ::vfork();
  if (pid == 0) become(plan, error);
  if (pid < 0) *error = errno;
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  return pid;
}

// As exec() wants them, with a null at the end; they point into `texts`.
std::vector<char*> to_pointers(const std::vector<std::string>& texts, std::string_view program) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) {
    if (text.find('\0') != std::string::npos) {
      fail(ErrorKind::input, fmt::format("an argument of \"{}\" holds a NUL byte", program));
    }
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

int remaining_ms(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000));
}

Clock::time_point after(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Process::Process(const std::vector<std::string>& argv, bool read_output, int death_signal,
                 const std::vector<std::string>& environment) {
  FLOTILLA_ASSERT(!argv.empty());
  const std::string& program = argv[0];
  const std::vector<char*> arguments = to_pointers(argv, program);
  const std::vector<char*> variables = to_pointers(environment, program);

  auto [input_read, input_write] = make_pipe(program);
  Descriptor output_read;
  Descriptor output_write;
  if (read_output) {
    std::tie(output_read, output_write) = make_pipe(program);
  } else {
    output_write = Descriptor(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  }
  // A memory file, not a pipe: a chatty child can never block on it.
  Descriptor errors(::memfd_create("stderr", MFD_CLOEXEC));
  const Descriptor child_input = above_standard(std::move(input_read));
  const Descriptor child_output = above_standard(std::move(output_write));
  errors = above_standard(std::move(errors));
  if (child_input.get() < 0 || child_output.get() < 0 || errors.get() < 0) fail_start(program);

  const ChildPlan plan{arguments.data(),  environment.empty() ? environ : variables.data(),
                       child_input.get(), child_output.get(),
                       errors.get(),      ::getpid(),
                       death_signal};
  volatile int error = 0;
  const pid_t pid = start(plan, &error);
  if (error != 0) {
    if (pid > 0) ::waitpid(pid, nullptr, 0);
    errno = error;
    fail_start(program);
  }
  pid_ = pid;
  input_ = input_write.release();
  output_ = output_read.release();
  errors_ = errors.release();
  ::fcntl(input_, F_SETFL, O_NONBLOCK);
}

Process::~Process() {
  close_input();
  if (!status_) {
    kill();
    int ignored = 0;
    while (::waitpid(pid_, &ignored, 0) == -1 && errno == EINTR) {
    }
  }
  if (output_ >= 0) ::close(output_);
  ::close(errors_);
}

bool Process::write(std::span<const uint8_t> bytes, double stall_s) {
  const NoSigpipe guard;
  while (!bytes.empty()) {
    const ssize_t count = ::write(input_, bytes.data(), bytes.size());
    if (count > 0) {
      bytes = bytes.subspan(static_cast<size_t>(count));
      continue;
    }
    if (errno == EPIPE) return false;
    if (errno != EAGAIN && errno != EINTR) {
      fail(ErrorKind::output,
           fmt::format("cannot write to a child process: {}", std::strerror(errno)));
    }
    pollfd waiting{input_, POLLOUT, 0};
    if (::poll(&waiting, 1, static_cast<int>(stall_s * 1000)) == 0) {
      fail(ErrorKind::output, fmt::format("a child process took no data for {:g} s", stall_s));
    }
  }
  return true;
}

void Process::close_input() noexcept {
  if (input_ >= 0) ::close(std::exchange(input_, -1));
}

bool Process::exchange(std::span<const uint8_t> input, std::vector<uint8_t>& output,
                       double limit_s) {
  FLOTILLA_ASSERT(output_ >= 0);
  const NoSigpipe guard;
  const auto deadline = after(limit_s);
  std::array<uint8_t, 1 << 16> buffer;
  while (true) {
    if (input.empty()) close_input();
    // poll() passes over negative descriptors.
    std::array<pollfd, 2> waiting{pollfd{output_, POLLIN, 0}, pollfd{input_, POLLOUT, 0}};
    if (::poll(waiting.data(), waiting.size(), remaining_ms(deadline)) == 0) return false;
    if (waiting[1].revents != 0) {
      const ssize_t count = ::write(input_, input.data(), input.size());
      if (count > 0) input = input.subspan(static_cast<size_t>(count));
      if (count < 0 && errno == EPIPE) input = {};
    }
    if (waiting[0].revents != 0) {
      const ssize_t count = ::read(output_, buffer.data(), buffer.size());
      if (count == 0) return true;
      if (count > 0) output.insert(output.end(), buffer.begin(), buffer.begin() + count);
    }
  }
}

std::optional<int> Process::wait(double limit_s) {
  const auto deadline = after(limit_s);
  auto pause = std::chrono::milliseconds(1);
  while (!status_) {
    int status = 0;
    const pid_t found = ::waitpid(pid_, &status, WNOHANG);
    if (found == pid_) status_ = status;
    if (found != 0) continue;
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
  return status_;
}

void Process::kill() noexcept {
  if (!status_) ::kill(pid_, SIGKILL);
}

std::string Process::errors() const {
  std::string text(kErrorBytes, '\0');
  const ssize_t count = ::pread(errors_, text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return excerpt(text, kErrorBytes);
}

ProcessResult run_process(const std::vector<std::string>& argv, std::span<const uint8_t> input,
                          double limit_s) {
  Process process(argv, /*read_output=*/true);
  ProcessResult result;
  const bool done = process.exchange(input, result.output, limit_s);
  const std::optional<int> status = done ? process.wait(limit_s) : std::nullopt;
  if (!status) {
    fail(ErrorKind::machine,
         fmt::format("\"{}\" was still running after {:g} s", argv[0], limit_s));
  }
  result.status = *status;
  result.errors = process.errors();
  return result;
}

std::string describe_status(int status) {
  if (WIFSIGNALED(status)) return fmt::format("killed by signal {}", WTERMSIG(status));
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace flotilla::io
