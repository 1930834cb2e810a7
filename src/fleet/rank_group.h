// Ranks that one mpirun has started, each with a connection for orders and reports (lifeline.h):
// what `flotilla run --ranks` and the controller of a fleet have in common. One thread uses it, and
// it never waits for a single rank.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/job_report.h"
#include "fleet/control_socket.h"
#include "fleet/mpirun.h"
#include "io/subprocess.h"

namespace flotilla::fleet {

class RankGroup {
 public:
  struct Rank {
    pid_t pid = 0;
    int number = -1;  // once it has spoken
    Socket orders;
    std::optional<int> end;  // its own exit code
    bool gone = false;
  };
  using OnReport = std::function<void(const JobReport& report, const std::string& words)>;

  // Listens at `name`. Errors: ErrorKind::machine.
  explicit RankGroup(const std::string& name) : listener_(listen_at(name)) {}
  ~RankGroup() { finish(); }
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  // Starts `command`. The calling thread must outlive it: mpirun ends with this thread.
  void start(const std::vector<std::string>& command, const Variables& variables);

  // To wait for: new ranks, then a word of each of ranks().
  std::vector<pollfd> events() const;
  // Welcomes ranks that have come, at the end of ranks(); one that comes late is sent away.
  void admit_all();
  // What rank `index` has reported; true when it has left with that.
  bool hear(size_t index, const OnReport& on_report);
  // Notes that mpirun has ended, and kills ranks that were told to leave and have not.
  void look();

  void order_all(const Order& order) const;
  // Ends all, however they are; within seconds over() holds. Again: nothing to do.
  void end_all(int exit_code);
  bool is_ending() const { return end_at_.has_value(); }
  // Kills what is left, and removes what it has left behind.
  void finish();

  // mpirun and all ranks have gone.
  bool over() const;
  const std::vector<Rank>& ranks() const { return ranks_; }
  // Of mpirun, as from waitpid(); nothing while it runs.
  std::optional<int> launcher_status() const { return status_; }
  std::string launcher_errors() const { return mpirun_ ? mpirun_->errors() : ""; }
  // The numbers of the ranks that have spoken, sorted.
  std::vector<int> started() const;

 private:
  using Clock = std::chrono::steady_clock;

  void kill_all();

  Socket listener_;
  std::optional<io::Process> mpirun_;
  std::optional<int> status_;
  std::vector<Rank> ranks_;
  int64_t job_ = 0;  // Open MPI's number
  int exit_code_ = 0;
  std::optional<Clock::time_point> end_at_;
};

}  // namespace flotilla::fleet
