// --events FILE and --preview-every N: who is told of a job while it runs.
#pragma once

#include <cstdint>
#include <memory>

#include "app/options.h"
#include "io/events.h"

namespace flotilla::app {

void add_events_options(po::options_description& options);

// Of --preview-every, in steps; 0 without it. Errors (ErrorKind::usage): not a number of steps;
// nobody listens, but for a dry run.
int64_t preview_every(const po::variables_map& values);

class JobListener {
 public:
  // On rank 0, when --events was given; nobody listens otherwise. Errors: ErrorKind::output; those
  // of preview_every().
  explicit JobListener(const po::variables_map& values);

  io::EventSink* events() const { return events_.get(); }  // null: nobody listens
  // True when the events take standard output, which then carries no results.
  bool owns_stdout() const { return owns_stdout_; }
  int64_t preview_every() const { return preview_every_; }

  // Runs `body` and tells of the error that leaves it; once, however often such calls are nested.
  template <typename Body>
  auto watch(Body&& body) {
    try {
      return body();
    } catch (...) {
      tell_failure();
      throw;
    }
  }

 private:
  void tell_failure();  // in a catch block

  std::unique_ptr<io::EventSink> events_;
  bool owns_stdout_ = false;
  int64_t preview_every_;
  bool told_ = false;
};

}  // namespace flotilla::app
