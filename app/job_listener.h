// --events FILE: who is told of a job while it runs.
#pragma once

#include <memory>

#include "app/options.h"
#include "io/events.h"

namespace flotilla::app {

void add_events_option(po::options_description& options);

class JobListener {
 public:
  // On rank 0, when --events was given; nobody listens otherwise. Errors: ErrorKind::output.
  explicit JobListener(const po::variables_map& values);

  io::EventSink* events() const { return events_.get(); }  // null: nobody listens
  // True when the events take standard output, which then carries no results.
  bool owns_stdout() const { return owns_stdout_; }

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
  bool told_ = false;
};

}  // namespace flotilla::app
