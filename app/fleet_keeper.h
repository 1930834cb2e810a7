// The ranks of a server, held by a thread of their own: it starts them, warms them, hands them one
// job at a time and, when a job has taken them down, starts them anew. What happens is news that
// the server fetches; it never waits for ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "fleet/controller.h"

namespace flotilla::app {

struct KeeperOptions {
  fleet::ControllerOptions fleet;
  std::vector<std::string> warm_up;      // jobs as YAML, run before the first one is taken
  std::function<void()> notify = [] {};  // there is news, or another state; from the thread
};

// What is known of the ranks after a job.
struct ResidentFacts {
  std::vector<std::string> models;
  std::vector<int64_t> host_bytes;    // of each rank
  std::vector<int64_t> device_bytes;  // likewise: the most of the last job, 0 on the CPU
};

class FleetKeeper {
 public:
  // Jobs in a row that may take the ranks down; after one more the keeper is over.
  static constexpr int kMostRestarts = 3;
  enum class State { starting, warming_up, ready, running, over };

  // Starts the thread.
  explicit FleetKeeper(KeeperOptions options);
  ~FleetKeeper();  // as after close(SIGTERM), and waits
  FleetKeeper(const FleetKeeper&) = delete;
  FleetKeeper& operator=(const FleetKeeper&) = delete;

  // Begins the job, a message of fleet/job_runner.h. Only when ready.
  void submit(nlohmann::json job);
  // Asks the job in flight to stop at its next safe point, for this reason: a signal, or a request
  // (pipeline/stop.h).
  void cancel(int reason);
  // cancel(), and takes no other job: the ranks leave, and the keeper is over.
  void close(int reason);
  // After close(): the ranks leave now, whatever they do.
  void force();

  // Events of the job in flight since the last call. The last one of each job is "done" or "error";
  // once it is here, the keeper is ready, or on its way to be.
  std::vector<nlohmann::json> take_news();
  State state() const;
  ResidentFacts residents() const;
  int num_starts() const;
  // Why it is over, when nobody has closed it.
  std::optional<Error> failure() const;

 private:
  void serve();
  void start_ranks();
  void warm_up();
  // The job's last event, and whether the ranks are still there.
  nlohmann::json run_job(const nlohmann::json& job, bool tells);
  void take_item(const nlohmann::json& item, bool tells);
  void settle_job(nlohmann::json last);
  void revive();
  bool is_closing() const;
  void set_state(State state);
  std::shared_ptr<fleet::Controller> controller() const;

  const KeeperOptions options_;
  int num_losses_ = 0;  // in a row; of the thread

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::starting;
  bool closing_ = false;
  int stop_reason_ = 0;  // of the job in flight; 0: it goes on
  std::optional<nlohmann::json> job_;
  std::vector<nlohmann::json> news_;
  ResidentFacts residents_;
  int num_starts_ = 0;
  std::optional<Error> failure_;
  std::shared_ptr<fleet::Controller> controller_;

  std::thread thread_;
};

}  // namespace flotilla::app
