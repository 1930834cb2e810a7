// A rank's connection to its controller (controller.h): the rank gets the controller's standard
// output and error over it, so that nothing stands between; is told to stop or to leave; reports
// its exit code; and ends itself once the controller is gone, however that went.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace flotilla::app {

// The controller's socket, a name in the abstract namespace; set for ranks only.
inline constexpr const char* kControllerVariable = "FLOTILLA_CONTROLLER";

// From the controller to a rank.
struct Order {
  enum class What : int32_t {
    welcome,  // the first one; carries the two standard streams
    stop,     // at the next safe point, as after the signal `value`
    leave,    // now, with exit code `value`
  };
  What what = What::welcome;
  int32_t value = 0;
};

// Whether a controller started this process as a rank.
bool is_controlled();

class Lifeline {
 public:
  // Does nothing without a controller. With one that cannot be reached, ends the process.
  Lifeline();
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  // The last words of this rank.
  void close(int exit_code) noexcept;

 private:
  void listen();

  int fd_ = -1;
  std::atomic<bool> closed_{false};
  std::thread thread_;
};

}  // namespace flotilla::app
