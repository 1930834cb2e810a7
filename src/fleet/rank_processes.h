// The ranks of a fleet as its controller sees them: a group (rank_group.h) in which each rank has a
// second connection, for messages (frame.h). One thread uses it, and it never waits for a single
// rank.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/job_report.h"
#include "fleet/control_socket.h"
#include "fleet/frame.h"
#include "fleet/rank_group.h"

namespace flotilla::fleet {

// The name of a fleet's sockets, in the environment of its ranks.
inline constexpr const char* kFleetVariable = "FLOTILLA_FLEET";
// The socket for messages of the fleet `name`; the one for orders has the name itself.
std::string message_socket(const std::string& name);

class RankListener {
 public:
  virtual ~RankListener() = default;
  virtual void on_frame(int rank, Frame frame, int64_t bytes) = 0;
  // What ends the job of all; from `rank`, -1: of several.
  virtual void on_words(int rank, ErrorKind kind, std::string text) = 0;
  // Its process left without a word. `rank` is -1 when it had not said which one it is.
  virtual void on_lost(int rank, pid_t pid) = 0;
  // No more of the driver's frames for now.
  virtual bool is_full() const = 0;
};

class RankProcesses {
 public:
  // Opens the sockets. Errors: ErrorKind::machine.
  RankProcesses();

  // Starts `command`. The calling thread must outlive it: mpirun ends with this thread.
  void start(const std::vector<std::string>& command, Variables variables);
  // Waits for a short while, or until `wake_fd` has something to read; passes on what has happened.
  // Errors (ErrorKind::communication): a rank sends what is no frame.
  void poll(RankListener& listener, int wake_fd);

  void send_all(const std::shared_ptr<const PackedFrame>& frame);
  // Of those whose process has ended or is stopped; seen before its connection tells.
  std::vector<int> not_running() const;

  // Orders, their end, and what is known of all.
  RankGroup& group() { return group_; }
  const RankGroup& group() const { return group_; }

 private:
  // With the rank of the same index in group().
  struct Talk {
    Socket messages;
    FrameReader reader;
    std::deque<FrameSender> outgoing;
  };

  void accept_messages();
  void hear(size_t index, RankListener& listener);
  void read_frames(size_t index, RankListener& listener, bool to_the_end);

  const std::string name_ = new_socket_name();
  RankGroup group_{name_};
  Socket message_listener_;
  std::deque<Talk> talks_;
};

}  // namespace flotilla::fleet
