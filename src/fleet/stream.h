// What a job yields, as it comes.
#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "fleet/message.h"

namespace flotilla::fleet {

class Service;
struct ServedJob;

// Belongs to the thread that dispatched the job: use by another one is an error (ErrorKind::usage).
// A stream that goes away before its end never waits: the job runs on, its items are dropped, and
// the controller is busy until it has ended; an error of it is logged.
class Stream {
 public:
  Stream(std::shared_ptr<Service> service, std::shared_ptr<ServedJob> job);
  ~Stream();
  Stream(Stream&& other) noexcept = default;
  Stream& operator=(Stream&& other) noexcept;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // The next item; nothing at the end of the job. Waits. Errors, after the items that came before:
  // SymmetricRunnerError, AsymmetricRunnerError, PoisonedError, ClosedError.
  std::optional<Message> next();
  // Drops what is left. Errors as of next().
  void drain();

 private:
  void abandon() noexcept;

  std::shared_ptr<Service> service_;
  std::shared_ptr<ServedJob> job_;
  std::thread::id owner_ = std::this_thread::get_id();
};

}  // namespace flotilla::fleet
