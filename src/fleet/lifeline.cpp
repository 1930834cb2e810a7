#include "fleet/lifeline.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/job_report.h"
#include "base/log.h"
#include "base/temp_registry.h"
#include "fleet/control_socket.h"
#include "fleet/mpirun.h"

namespace flotilla::fleet {
namespace {

// Open MPI's number of this job, which is in the names of its shared-memory files; 0: unknown.
int64_t openmpi_job(const comm::Environment& environment) {
  const char* text = environment("OMPI_MCA_ess_base_jobid");
  return text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
}

[[noreturn]] void leave(int exit_code) {
  remove_temporaries();
  ::_exit(exit_code);
}

void take_streams(const std::array<int, 2>& streams) {
  constexpr std::array<int, 2> kTargets = {STDOUT_FILENO, STDERR_FILENO};
  for (size_t i = 0; i < streams.size(); ++i) {
    ::dup2(streams[i], kTargets[i]);
    ::close(streams[i]);
  }
}

}  // namespace

Lifeline::Lifeline(LifelineOptions options) : options_(std::move(options)) {
  if (options_.socket.empty()) return;
  if (const auto launch = comm::find_launch(options_.environment)) rank_ = launch->rank;
  Socket socket = connect_to(options_.socket);
  std::array<int, 2> streams{};
  if (socket.get() < 0 || !receive_welcome(socket.get(), streams)) leave_orphaned();
  take_streams(streams);
  fd_ = socket.release();
  set_report_socket(fd_);
  send_report({JobReport::What::start, rank_, openmpi_job(options_.environment)});
  // Signals are for the compute thread.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { listen(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Lifeline::~Lifeline() {
  if (fd_ < 0) return;
  closed_ = true;
  set_report_socket(-1);
  ::shutdown(fd_, SHUT_RDWR);  // wakes the thread
  thread_.join();
  ::close(fd_);
}

void Lifeline::close(int exit_code) noexcept { send_report({JobReport::What::end, exit_code}); }

void Lifeline::listen() {
  Order order;
  while (receive_order(fd_, order)) {
    if (order.what == Order::What::stop) options_.on_stop(order.value);
    if (order.what == Order::What::cancel && options_.on_cancel)
      options_.on_cancel(order.value, order.signal);
    if (order.what == Order::What::leave) leave(order.value);
  }
  if (!closed_) leave_orphaned();
}

void Lifeline::leave_orphaned() const {
  remove_openmpi_memory(openmpi_job(options_.environment));  // nobody else is left to do it
  ::alarm(2);  // ends the process where nobody reads the log any more, and so a line in it blocks
  if (rank_ == 0)
    log::error("communication", "the flotilla process that started the ranks is gone");
  leave(exit_code(ErrorKind::communication));
}

}  // namespace flotilla::fleet
