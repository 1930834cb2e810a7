// The ranks of a fleet as its controller sees them: one mpirun, and for each rank a connection for
// orders and reports (lifeline.h) and one for messages (frame.h). One thread uses it, and it never
// waits for a single rank.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/job_report.h"
#include "fleet/control_socket.h"
#include "fleet/frame.h"
#include "fleet/mpirun.h"
#include "io/subprocess.h"

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
  ~RankProcesses();  // finish()
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Starts `command`. The calling thread must outlive it: mpirun ends with this thread.
  void start(const std::vector<std::string>& command, Variables variables);
  // Waits for a short while, or until `wake_fd` has something to read; passes on what has happened.
  // Errors (ErrorKind::communication): a rank sends what is no frame.
  void poll(RankListener& listener, int wake_fd);

  void send_all(const std::shared_ptr<const PackedFrame>& frame);
  // To leave, or to stop the job at its next safe point.
  void order_all(const Order& order);
  // Ends all, however they are; within seconds over() holds.
  void end_all(int exit_code);

  // Kills what is left, and removes what it has left behind.
  void finish();

  // mpirun and all ranks have gone.
  bool over() const;
  // Of mpirun, as from waitpid(); nothing while it runs.
  std::optional<int> launcher_status() const { return status_; }
  std::string launcher_errors() const { return mpirun_ ? mpirun_->errors() : ""; }
  // The numbers of the ranks that have started.
  std::vector<int> started() const;
  // Of those whose process has ended or is stopped; seen before its connection tells.
  std::vector<int> not_running() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Rank {
    pid_t pid = 0;
    int number = -1;  // once it has spoken
    Socket orders;
    Socket messages;
    FrameReader reader;
    std::deque<FrameSender> outgoing;
    std::optional<int> end;  // its own exit code
    bool gone = false;
  };

  void accept_all();
  void hear(Rank& rank, RankListener& listener);
  void read_frames(Rank& rank, RankListener& listener, bool to_the_end);
  void kill_all();

  std::string name_ = new_socket_name();
  Socket order_listener_;
  Socket message_listener_;
  std::optional<io::Process> mpirun_;
  std::optional<int> status_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  int64_t job_ = 0;  // Open MPI's number
  std::optional<int> exit_code_;
  std::optional<Clock::time_point> end_at_;
};

}  // namespace flotilla::fleet
