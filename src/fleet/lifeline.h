// A rank's connection to the process that started it (controller.h, app/controller.h): the rank
// gets the controller's standard output and error over it, so that nothing stands between; is told
// to stop or to leave; reports its exit code; and ends itself once the controller is gone, however
// that went.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "comm/launch.h"

namespace flotilla::fleet {

// The controller's socket, a name in the abstract namespace; set for ranks only.
inline constexpr const char* kControllerVariable = "FLOTILLA_CONTROLLER";

// From the controller to a rank.
struct Order {
  enum class What : int32_t {
    welcome,  // the first one; carries the two standard streams
    stop,     // at the next safe point, as after the signal `value`
    leave,    // now, with exit code `value`
    cancel,   // the job of number `value` stops at its next safe point, as after `signal`
  };
  What what = What::welcome;
  int32_t value = 0;
  int32_t signal = 0;
};

struct LifelineOptions {
  std::string socket;             // the controller's; empty: there is none
  comm::Environment environment;  // what the launcher says of this rank
  // Called by another thread.
  std::function<void(int signal)> on_stop;
  std::function<void(int job, int signal)> on_cancel = {};
};

class Lifeline {
 public:
  // Does nothing without a controller. With one that cannot be reached, ends the process.
  explicit Lifeline(LifelineOptions options);
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // The last words of this rank.
  void close(int exit_code) noexcept;

 private:
  void listen();
  [[noreturn]] void leave_orphaned() const;

  LifelineOptions options_;
  int rank_ = 0;
  int fd_ = -1;
  std::atomic<bool> closed_{false};
  std::thread thread_;
};

}  // namespace flotilla::fleet
