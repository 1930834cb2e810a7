// The thread behind a Controller: it starts the ranks, moves messages, keeps the time limits and
// decides when the fleet is lost. Controller and Stream are its faces. Private to fleet/.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fleet/controller.h"
#include "fleet/outcome.h"
#include "fleet/rank_processes.h"

namespace flotilla::fleet {

// Guarded by the service's mutex.
struct ServedJob {
  struct Item {
    Message message;
    int64_t bytes;
  };
  std::deque<Item> items;
  int64_t queued_bytes = 0;
  std::optional<JobEnd> end;
  bool abandoned = false;  // its stream is gone
  bool read = false;       // its stream has been read to the end
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

class Service final : public RankListener {
 public:
  // Starts the thread; returns when the ranks are ready. Errors as of Controller.
  explicit Service(ControllerOptions options);
  ~Service() override;
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // As of Controller and Stream.
  std::shared_ptr<ServedJob> dispatch(const Message& message);
  void cancel(int signal);
  void shutdown();
  bool is_alive() const;
  std::optional<Message> next(ServedJob& job);
  void abandon(const std::shared_ptr<ServedJob>& job);

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { starting, ready, closing, poisoned };

  void serve(const std::vector<std::string>& command, const Variables& variables);
  void step();
  void take_requests();
  void keep_deadlines();
  void note_fault();
  void settle_fault();
  void poison(ErrorKind kind, std::vector<int> ranks, std::string text);
  std::string missing_text() const;
  void require_free() const;
  void end_job(const JobEnd& end);

  void on_frame(int rank, Frame frame, int64_t bytes) override;
  void on_words(int rank, ErrorKind kind, std::string text) override;
  void on_lost(int rank, pid_t pid) override;
  bool is_full() const override;

  const ControllerOptions options_;

  // Of the thread.
  RankProcesses processes_;
  std::set<int> set_up_, ready_;
  struct Words {
    ErrorKind kind;
    std::string text;
    std::vector<int> at_fault;
  };
  std::optional<Words> words_;  // the first ones
  int lost_ = -1;               // the first one
  std::string lost_text_;
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> fault_at_, closing_at_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::starting;
  std::optional<FleetError> cause_;  // when poisoned
  bool over_ = false;                // no process is left
  bool shutdown_wanted_ = false;
  std::shared_ptr<ServedJob> job_;  // in flight, or not read to its end
  int32_t num_jobs_ = 0;            // dispatched; ranks count them too
  int cancel_signal_ = 0;           // for the job in flight; 0: none
  std::vector<std::shared_ptr<const PackedFrame>> outbox_;

  Socket wake_;  // an eventfd
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace flotilla::fleet
