// The time from the start of a rank until all ranks can watch each other (watchdog.h). MPI waits
// for all of them there and has no time limit, so one that never comes would hold up the others for
// ever. Before it starts MPI each rank sets a mark, a socket in the abstract namespace, which is
// gone when its process is; a thread that calls neither MPI nor Torch reads the marks
// (/proc/net/unix) and ends the process, with the ranks that are missing by name, when no other one
// has come for too long. Private to comm/.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/launch.h"

namespace flotilla::comm {

// What all ranks of a launcher's step have alike and no other step at that time: a name for the
// marks. "" where the launcher tells nothing.
std::string launch_id(const Environment& environment);

class StartWatch {
 public:
  // Nothing without a launcher, or for one rank. The time counts from the last rank that came.
  StartWatch(std::optional<Launch> launch, const std::string& id, double limit_s);
  // The ranks are ready: takes the mark away.
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  using Marks = std::map<int, pid_t>;  // by rank

  void run();
  // False when the thread has to stop.
  bool sleep();
  Marks marks() const;
  [[noreturn]] void end(const Marks& marks);
  std::string text(const Marks& marks) const;
  void set_mark();

  std::optional<Launch> launch_;
  double limit_s_;
  std::string prefix_;  // of the names of all marks; the rank and the process follow
  int mark_ = -1;       // the socket
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace flotilla::comm
