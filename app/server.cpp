#include "app/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <utility>
#include <vector>

#include "app/process.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "io/events.h"
#include "pipeline/job_events.h"
#include "pipeline/stop.h"
#include "version.h"

namespace flotilla::app {
namespace {

using nlohmann::json;
using State = FleetKeeper::State;
using Op = ServeRequest::Op;

constexpr int kLookEveryMs = 100;
constexpr size_t kMostClients = 64;
constexpr size_t kMostListed = 1000;
// Events that a client has not read: a job has a few hundred of some hundred bytes, and previews of
// at most 260 KiB.
constexpr size_t kMostUnread = size_t{4} << 20;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const char* name_of(State state) {
  switch (state) {
    case State::starting:
      return "starting";
    case State::warming_up:
      return "warming up";
    case State::ready:
      return "ready";
    case State::running:
      return "running";
    case State::over:
      break;
  }
  return "over";
}

}  // namespace

struct Server::Client {
  int64_t id = 0;
  fleet::Socket socket;  // of a caller; a list has none
  int in = -1;
  int out = -1;
  bool is_list = false;
  LineReader lines;
  JobListReader list{""};
  std::string unsent;
  bool has_ended = false;  // sends nothing more
  bool last = false;       // goes once all is sent
  bool gone = false;
};

struct Server::CurrentJob {
  int64_t number = 0;
  int64_t client = 0;
  Clock::time_point start = Clock::now();
  std::optional<double> prepare_s;   // to "accepted"
  std::optional<double> overhead_s;  // from there to its first denoise stage
  bool cancelled = false;
  json progress = json::object();  // what status tells of it
};

Server::Server(ServerOptions options)
    : options_(std::move(options)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      keeper_([this] {
        KeeperOptions keeper = options_.keeper;
        keeper.notify = [fd = wake_.get()] { ::eventfd_write(fd, 1); };
        return keeper;
      }()) {
  if (options_.list_fd < 0) return;
  Client& list = clients_.emplace_back();
  list.id = ++num_clients_;
  list.in = options_.list_fd;
  list.out = STDOUT_FILENO;
  list.is_list = true;
  list.list = JobListReader(options_.list_folder);
  list_is_read_ = false;
}

Server::~Server() = default;

int Server::run() {
  while (!is_over()) {
    wait();
    look_around();
  }
  take_news();
  for (Client& client : clients_) flush(client);
  if (const auto failure = keeper_.failure()) throw Error(*failure);
  return exit_code_now();
}

bool Server::is_over() const { return keeper_.state() == State::over; }

int Server::exit_code_now() const {
  if (job_was_stopped_ || !list_.empty()) return exit_code(ErrorKind::stopped);
  const bool had_list = options_.list_fd >= 0;
  return had_list && counts_.failed > 0 ? exit_code(ErrorKind::failed_jobs) : 0;
}

void Server::wait() {
  std::vector<pollfd> events = {{wake_.get(), POLLIN, 0},
                                {options_.socket ? options_.socket->fd() : -1, POLLIN, 0}};
  for (const Client& client : clients_) {
    const bool reads =
        !client.has_ended && !client.last && !(client.is_list && list_.size() >= kMostListed);
    events.push_back({reads ? client.in : -1, POLLIN, 0});
    // A caller that has gone shows without being asked for; a closed pipe would show for ever.
    const bool looks = !client.is_list || !client.unsent.empty();
    events.push_back(
        {looks ? client.out : -1, static_cast<short>(client.unsent.empty() ? 0 : POLLOUT), 0});
  }
  (void)::poll(events.data(), events.size(), kLookEveryMs);
  eventfd_t ignored = 0;
  ::eventfd_read(wake_.get(), &ignored);
  size_t i = 2;
  for (Client& client : clients_) {
    if (events[i].revents != 0) read_from(client);
    if ((events[i + 1].revents & (POLLERR | POLLHUP)) != 0) client.gone = true;
    if ((events[i + 1].revents & POLLOUT) != 0) flush(client);
    i += 2;
  }
  if (events[1].revents != 0) accept_callers();
}

void Server::look_around() {
  take_news();
  if (const int signal = held_signal(); signal != 0 && !closing_at_) {
    log::info("serve", "signal {}: {}", signal,
              job_ ? "the job stops at its next safe point" : "ending");
    begin_close(signal);
  }
  if (closing_at_ && !forced_ && seconds_since(*closing_at_) > options_.grace_s) {
    forced_ = true;
    log::warn("serve", "the job has not stopped within {:g} s: it is cut off", options_.grace_s);
    keeper_.force();
  }
  start_next();
  const bool list_is_done = options_.list_fd >= 0 && list_is_read_ && list_.empty() && !job_;
  if (list_is_done && !closing_at_) begin_close(pipeline::kEndRequest);
  clients_.remove_if([&](const Client& client) {
    const bool waits = job_ && job_->client == client.id;
    const bool is_done = client.unsent.empty() && (client.last || (client.has_ended && !waits));
    return !client.is_list && (client.gone || is_done);
  });
}

// ---- Callers and what they ask.

void Server::accept_callers() {
  while (auto caller = options_.socket->accept()) {
    Client& client = clients_.emplace_back();
    client.id = ++num_clients_;
    client.in = client.out = caller->get();
    client.socket = std::move(*caller);
    if (clients_.size() <= kMostClients) continue;
    send(client, pipeline::error_event(ErrorKind::failed_jobs, "too many callers"));
    client.last = true;
  }
}

void Server::read_from(Client& client) {
  std::array<char, 1 << 16> bytes;
  const ssize_t count = ::read(client.in, bytes.data(), bytes.size());
  if (count > 0) return take_bytes(client, {bytes.data(), static_cast<size_t>(count)});
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  take_end(client);
}

void Server::take_bytes(Client& client, std::string_view bytes) {
  client.lines.add(bytes);
  while (const auto line = client.lines.next()) {
    if (client.last) return;
    take_line(client, *line);
  }
  if (!client.lines.is_too_long()) return;
  send(client,
       pipeline::error_event(ErrorKind::usage,
                             fmt::format("a line of more than {}",
                                         human_bytes(static_cast<double>(kMostRequestBytes)))));
  client.last = true;
  if (!client.is_list) return;
  ++counts_.failed;
  list_is_read_ = true;
}

// The last line needs no end of its own; one that is cut off is no request.
void Server::take_end(Client& client) {
  client.has_ended = true;
  if (const std::string rest = client.lines.take_rest(); !rest.empty() && !client.last)
    take_line(client, rest);
  if (!client.is_list) return;
  try {
    if (auto request = client.list.finish()) answer(client, std::move(*request));
  } catch (const Error& error) {
    ++counts_.failed;
    send(client, pipeline::error_event(error.kind(), error.what()));
  }
  list_is_read_ = true;
}

void Server::take_line(Client& client, const std::string& line) {
  client.is_list ? take_list_line(client, line) : answer_line(client, line);
}

void Server::take_list_line(Client& client, const std::string& line) {
  try {
    if (auto request = client.list.add(line)) answer(client, std::move(*request));
  } catch (const Error& error) {
    ++counts_.failed;
    send(client, pipeline::error_event(error.kind(), error.what()));
  }
}

void Server::answer_line(Client& client, const std::string& line) {
  try {
    answer(client, parse_request(line));
  } catch (const Error& error) {
    send(client, pipeline::error_event(error.kind(), error.what()));
  }
}

void Server::answer(Client& client, ServeRequest request) {
  switch (request.op) {
    case Op::submit:
      return answer_submit(client, std::move(request));
    case Op::status:
      return send(client, status());
    case Op::cancel:
      return answer_cancel(client, request);
    case Op::shutdown:
      send(client, {{"event", "closing"}});
      if (!closing_at_) begin_close(pipeline::kEndRequest);
      return;
  }
}

void Server::answer_submit(Client& client, ServeRequest request) {
  if (client.is_list) {
    list_.push_back(std::move(request));
    return start_next();
  }
  if (!closing_at_ && !job_ && list_.empty() && keeper_.state() == State::ready)
    return begin_job(client.id, request);
  json event = pipeline::error_event(ErrorKind::failed_jobs, busy_text());
  event["busy"] = true;
  send(client, event);
}

std::string Server::busy_text() const {
  if (closing_at_) return "the server is ending";
  if (!job_) return fmt::format("the server is {}", name_of(keeper_.state()));
  std::string text = fmt::format("the server is busy with job {}", job_->number);
  if (job_->progress.contains("eta_s"))
    text += fmt::format(" ({}, {} to its end)", job_->progress.value("stage", ""),
                        human_duration(job_->progress.value("eta_s", 0.0)));
  return text;
}

void Server::answer_cancel(Client& client, const ServeRequest& request) {
  if (!job_ || (request.job && *request.job != job_->number)) {
    send(client,
         pipeline::error_event(ErrorKind::usage,
                               request.job ? fmt::format("job {} is not running", *request.job)
                                           : "no job is running"));
    return;
  }
  log::info("serve", "job {} is cancelled", job_->number);
  job_->cancelled = true;
  keeper_.cancel(pipeline::kCancelRequest);
  send(client, {{"event", "cancelling"}, {"job", job_->number}});
}

json Server::status() const {
  const ResidentFacts residents = keeper_.residents();
  const auto& fleet = options_.keeper.fleet;
  json event = {{"event", "status"},
                {"state", closing_at_ ? "ending" : name_of(keeper_.state())},
                {"version", kVersion},
                {"process", ::getpid()},
                {"uptime_s", seconds_since(start_)},
                {"ranks", fleet.ranks},
                {"devices", fleet.devices},
                {"starts", keeper_.num_starts()},
                {"jobs_done", counts_.done},
                {"jobs_failed", counts_.failed},
                {"jobs_stopped", counts_.stopped},
                {"jobs_waiting", list_.size()},
                {"models", residents.models},
                {"host_bytes", residents.host_bytes},
                {"device_bytes", residents.device_bytes},
                {"job", nullptr}};
  if (!job_) return event;
  event["job"] = job_->progress;
  event["job"]["job"] = job_->number;
  event["job"]["elapsed_s"] = seconds_since(job_->start);
  event["job"]["cancelled"] = job_->cancelled;
  return event;
}

// ---- Jobs.

void Server::start_next() {
  if (list_.empty() || job_ || closing_at_ || keeper_.state() != State::ready) return;
  const ServeRequest request = std::move(list_.front());
  list_.pop_front();
  const auto list = std::find_if(clients_.begin(), clients_.end(),
                                 [](const Client& client) { return client.is_list; });
  begin_job(list->id, request);
}

void Server::begin_job(int64_t client, const ServeRequest& request) {
  job_ = std::make_unique<CurrentJob>();
  job_->number = ++num_jobs_;
  job_->client = client;
  log::info("serve", "job {}", job_->number);
  json job = {{"job_yaml", request.job_yaml}, {"base_folder", request.base_folder}};
  if (request.preview_every > 0) job["preview_every"] = request.preview_every;
  keeper_.submit(std::move(job));
}

void Server::take_news() {
  for (json& event : keeper_.take_news()) {
    if (!job_) continue;
    note_event(event);
    if (Client* client = find(job_->client)) send(*client, event);
    const std::string kind = event.value("event", "");
    if (kind == "done" || kind == "error") end_job(event);
  }
}

// Adds what the server knows, and keeps what status tells.
void Server::note_event(json& event) {
  const std::string kind = event.value("event", "");
  event["job"] = job_->number;
  if (kind == "accepted") job_->prepare_s = seconds_since(job_->start);
  if (kind == "phase" && !job_->overhead_s && event.value("phase", "").starts_with("stage_"))
    job_->overhead_s = seconds_since(job_->start) - job_->prepare_s.value_or(0);
  if (kind == "done" && job_->prepare_s) event["prepare_s"] = *job_->prepare_s;
  if (kind == "done" && job_->overhead_s) event["overhead_s"] = *job_->overhead_s;
  if (kind == "error") event["cancelled"] = job_->cancelled;
  json& progress = job_->progress;
  if (kind == "accepted") {
    for (const char* key : {"job_hash", "seed", "outputs"}) progress[key] = event.at(key);
  } else if (kind == "phase") {
    for (const char* key : {"stage", "step", "steps", "unit", "eta_s"}) progress.erase(key);
    progress["phase"] = event.at("phase");
  } else if (kind == "step") {
    for (const char* key : {"stage", "step", "steps", "unit", "eta_s"})
      progress[key] = event.at(key);
  }
}

void Server::end_job(const json& event) {
  const int code = event.value("exit_code", 0);
  const bool stopped = code == exit_code(ErrorKind::stopped);
  ++(code == 0 ? counts_.done : stopped ? counts_.stopped : counts_.failed);
  job_was_stopped_ = job_was_stopped_ || (stopped && closing_at_ && !job_->cancelled);
  if (code == 0) {
    log::info("serve", "job {} done in {}", job_->number,
              human_duration(seconds_since(job_->start)));
  } else {
    log::warn("serve", "job {} ended with exit code {}: {}", job_->number, code,
              event.value("message", ""));
  }
  job_.reset();
}

void Server::begin_close(int reason) {
  closing_at_ = Clock::now();
  keeper_.close(reason);
}

// ---- What goes out.

Server::Client* Server::find(int64_t id) {
  for (Client& client : clients_)
    if (client.id == id && !client.gone) return &client;
  return nullptr;
}

void Server::send(Client& client, const json& event) {
  if (client.gone) return;
  client.unsent += io::event_line(event) + '\n';
  flush(client);
  if (client.unsent.size() <= kMostUnread) return;
  log::warn("serve", "a caller does not read its events and is let go");
  client.gone = true;
  client.unsent.clear();
}

void Server::flush(Client& client) {
  while (!client.unsent.empty()) {
    // A pipe takes this much when it is ready; it may not be set to return at once, as others use
    // it too.
    pollfd ready{client.out, POLLOUT, 0};
    if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return;
    const size_t most = std::min<size_t>(client.unsent.size(), PIPE_BUF);
    const ssize_t count = client.is_list
                              ? ::write(client.out, client.unsent.data(), most)
                              : ::send(client.out, client.unsent.data(), most, MSG_NOSIGNAL);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      client.gone = true;
      client.unsent.clear();
      return;
    }
    client.unsent.erase(0, static_cast<size_t>(count));
  }
}

}  // namespace flotilla::app
