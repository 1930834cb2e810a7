// The side of a fleet that is on each rank: a program of ranks calls run_worker() in its main() and
// gives it what makes its Runner. `flotilla worker` does so with the stock runner (job_runner.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "comm/rank_context.h"
#include "fleet/message.h"

namespace flotilla::fleet {

// A job that a runner refuses: the rank is as good as before, and comes to the end of the job.
class RunnerError : public Error {
 public:
  explicit RunnerError(std::string text, ErrorKind kind = ErrorKind::input)
      : Error(kind, std::move(text)) {}
};

// What a job has besides its message.
class JobScope {
 public:
  virtual ~JobScope() = default;
  // Sends an item to the stream of the job; waits while nobody reads. The driver's only: on another
  // rank, or with a message that does not pass, RunnerError.
  virtual void emit(const Message& item) = 0;
  // The number of the signal that asks to stop at the next safe point: that of
  // Controller::cancel(), SIGTERM after its shutdown(); 0: go on.
  virtual int stop_signal() const = 0;
};

// Made once on each rank, then called once a job, collectively. Errors of run():
// - RunnerError, std::invalid_argument, and comm::AgreedError but for its kinds internal and
//   communication: the job alone has failed. All ranks must come to the end of the job: one that
//   fails while others wait for it in a collective call is the next case.
// - Anything else ends the fleet.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual void run(const Message& job, JobScope& scope) = 0;
  // Collective, before the ranks leave.
  virtual void close() {}
};

// On each rank; may be collective. Errors as of run(); they end the start of the fleet.
using RunnerFactory = std::function<std::unique_ptr<Runner>(comm::RankContext&)>;

struct WorkerOptions {
  comm::RankOptions ranks;  // with the environment, which has the way to the controller
  // For the others to come to the end of a job in which this rank failed; counted anew whenever
  // one of them gets on (RankContext::note_progress()).
  double patience_s = 10;
};

// Serves until the controller ends it; the exit code. Errors (ErrorKind::usage): no controller has
// started this process.
int run_worker(const RunnerFactory& factory, const WorkerOptions& options);

}  // namespace flotilla::fleet
