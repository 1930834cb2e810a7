// The server of jobs: one thread that waits for callers, requests, news of the ranks and signals,
// and never for any one of them. Protocol: docs/commands/serve.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "app/fleet_keeper.h"
#include "app/serve_request.h"
#include "app/serve_socket.h"

namespace flotilla::app {

struct ServerOptions {
  KeeperOptions keeper;
  std::unique_ptr<ServeSocket> socket;  // null: a list of jobs alone
  int list_fd = -1;                     // of a list of jobs, whose events go to standard output
  std::string list_folder = "/";        // relative paths of its YAML documents count from here
  double grace_s = 120;  // from a signal to the end of ranks that have not stopped by then
};

class Server {
 public:
  explicit Server(ServerOptions options);
  ~Server();

  // Until a signal (held_signal()), a request to end, or the end of the list. The exit code: 75
  // when a job was stopped or not begun, 9 when jobs of a list have failed, else 0. Errors: the
  // ranks did not come, or were lost too often.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Client;
  struct CurrentJob;
  struct Counts {
    int64_t done = 0, failed = 0, stopped = 0;
  };

  void wait();
  void look_around();
  void accept_callers();
  void read_from(Client& client);
  void take_bytes(Client& client, std::string_view bytes);
  void take_end(Client& client);
  void take_line(Client& client, const std::string& line);
  void take_list_line(Client& client, const std::string& line);
  void answer_line(Client& client, const std::string& line);
  void answer(Client& client, ServeRequest request);
  void answer_submit(Client& client, ServeRequest request);
  void answer_cancel(Client& client, const ServeRequest& request);
  nlohmann::json status() const;
  std::string busy_text() const;

  void start_next();
  void begin_job(int64_t client, const ServeRequest& request);
  void take_news();
  void note_event(nlohmann::json& event);
  void end_job(const nlohmann::json& event);
  void begin_close(int reason);
  bool is_over() const;
  int exit_code_now() const;

  void send(Client& client, const nlohmann::json& event);
  void flush(Client& client);
  Client* find(int64_t id);

  ServerOptions options_;
  fleet::Socket wake_;  // an eventfd
  std::list<Client> clients_;
  int64_t num_clients_ = 0;        // so far
  std::deque<ServeRequest> list_;  // jobs of the list that wait
  bool list_is_read_ = true;
  std::unique_ptr<CurrentJob> job_;
  int64_t num_jobs_ = 0;
  Counts counts_;
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> closing_at_;
  bool forced_ = false;
  bool job_was_stopped_ = false;  // by the end of the server
  FleetKeeper keeper_;            // last: its thread uses the others
};

}  // namespace flotilla::app
