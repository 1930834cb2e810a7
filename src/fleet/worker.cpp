#include "fleet/worker.h"

#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/job_report.h"
#include "base/log.h"
#include "fleet/control_socket.h"
#include "fleet/frame.h"
#include "fleet/lifeline.h"
#include "fleet/outcome.h"
#include "fleet/rank_processes.h"

namespace flotilla::fleet {
namespace {

// What the controller has asked for; told by the thread of the lifeline.
struct Wishes {
  std::atomic<int> stop{0};           // a signal
  std::atomic<int> cancelled_job{0};  // its number, from 1
  std::atomic<int> cancel_signal{0};  // known before the number
};

class Scope final : public JobScope {
 public:
  Scope(int fd, int rank, const Wishes& wishes) : fd_(fd), rank_(rank), wishes_(wishes) {}

  void begin_job() { ++job_; }

  void emit(const Message& item) override {
    if (rank_ != 0) {
      throw RunnerError(fmt::format("rank {} emits an item: only rank 0 does", rank_),
                        ErrorKind::usage);
    }
    bool sent = false;
    try {
      sent = send_frame(fd_, FrameKind::item, item);
    } catch (const Error& error) {
      throw RunnerError(error.what(), error.kind());
    }
    if (!sent) fail(ErrorKind::communication, "the controller of the fleet is gone");
  }
  int stop_signal() const override {
    if (const int stop = wishes_.stop.load(); stop != 0) return stop;
    return wishes_.cancelled_job.load() == job_ ? wishes_.cancel_signal.load() : 0;
  }

 private:
  int fd_;
  int rank_;
  const Wishes& wishes_;
  int job_ = 0;  // its number
};

// An error of the job alone, or nothing; anything else passes on.
std::optional<Error> run_guarded(Runner& runner, const Message& job, JobScope& scope) {
  try {
    runner.run(job, scope);
    return std::nullopt;
  } catch (const RunnerError& error) {
    return error;
  } catch (const comm::AgreedError& error) {
    if (error.kind() == ErrorKind::internal || error.kind() == ErrorKind::communication) throw;
    return error;
  } catch (const std::invalid_argument& error) {
    return Error(ErrorKind::config, error.what());
  }
}

void send(int fd, FrameKind kind, const Message& message) {
  if (!send_frame(fd, kind, message))
    fail(ErrorKind::communication, "the controller of the fleet is gone");
}

void run_one(Runner& runner, const Message& job, comm::RankContext& ranks, Scope& scope, int fd,
             double patience_s) {
  const auto own = run_guarded(runner, job, scope);
  const JobEnd end = gather_outcomes(ranks.world(), own, patience_s);
  if (!ranks.is_driver()) return;
  if (!end.errors.empty() && !end.alike)
    log::error("fleet", "the ranks do not agree on how the job went; {}", describe(end.errors));
  send(fd, FrameKind::end, to_message(end));
}

void serve(comm::RankContext& ranks, const std::string& name, const RunnerFactory& factory,
           double patience_s, const Wishes& wishes) {
  const Socket socket = connect_to(message_socket(name), SocketKind::stream);
  if (socket.get() < 0) fail(ErrorKind::communication, "the controller of the fleet is gone");
  ranks.note_phase("set up");
  auto runner = comm::agreed(ranks.world(), [&] {
    auto made = factory(ranks);
    if (made == nullptr) fail(ErrorKind::usage, "the factory of the fleet made no runner");
    send(socket.get(), FrameKind::set_up, Message());
    return made;
  });
  send(socket.get(), FrameKind::ready, Message());
  Scope scope(socket.get(), ranks.rank(), wishes);
  FrameReader reader;
  while (true) {
    ranks.note_phase("between two jobs");
    const auto frame = receive_frame(socket.get(), reader);
    if (!frame) fail(ErrorKind::communication, "the controller of the fleet is gone");
    if (frame->kind == FrameKind::leave) break;
    FLOTILLA_ASSERT(frame->kind == FrameKind::job);
    scope.begin_job();
    run_one(*runner, frame->message, ranks, scope, socket.get(), patience_s);
  }
  runner->close();
}

// In a catch block; once for all ranks. The exit code.
int report_failure() {
  bool speaks = true;
  bool agreed = false;
  try {
    throw;
  } catch (const comm::AgreedError& error) {
    speaks = error.speaks();
    agreed = true;
  } catch (...) {  // of the only rank: see comm::run_on_ranks()
  }
  const Error error = comm::current_error();
  if (speaks) {
    log::error(to_string(error.kind()), "{}", error.what());
    send_last_words(error.kind(), error.what(), agreed ? Culprit::several : Culprit::sender);
  }
  return exit_code(error.kind());
}

}  // namespace

int run_worker(const RunnerFactory& factory, const WorkerOptions& options) {
  const auto& environment = options.ranks.environment;
  const char* name = environment ? environment(kFleetVariable) : nullptr;
  if (name == nullptr) {
    fail(ErrorKind::usage,
         "a worker is started by the controller of a fleet, not by hand (docs/fleet.md)");
  }
  Wishes wishes;
  Lifeline lifeline({name, environment, [&](int signal) { wishes.stop = signal; },
                     [&](int job, int signal) {
                       wishes.cancel_signal = signal;
                       wishes.cancelled_job = job;
                     }});
  const auto launch = comm::find_launch(environment);
  log::configure({.level = log::Level::info,
                  .rank = launch ? launch->rank : 0,
                  .world_size = launch ? launch->world_size : 1});
  int code = 0;
  try {
    code = comm::run_on_ranks(options.ranks, [&](comm::RankContext& ranks) {
      serve(ranks, name, factory, options.patience_s, wishes);
      return 0;
    });
  } catch (...) {
    code = report_failure();
  }
  lifeline.close(code);
  return code;
}

}  // namespace flotilla::fleet
