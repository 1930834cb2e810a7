#include "fleet/rank_processes.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <string_view>
#include <utility>

namespace flotilla::fleet {
namespace {

using namespace std::chrono_literals;

constexpr int kLookEveryMs = 50;
// From the order to leave to SIGKILL.
constexpr auto kLeaveLimit = 5s;

// The main thread of a process ends before the others, and with the last of these its connections.
bool is_running(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(in, line);
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return false;
  return std::string_view("RSDI").find(line[name_end + 2]) != std::string_view::npos;
}

}  // namespace

std::string message_socket(const std::string& name) { return name + ".messages"; }

RankProcesses::RankProcesses()
    : order_listener_(listen_at(name_)),
      message_listener_(listen_at(message_socket(name_), SocketKind::stream)) {}

RankProcesses::~RankProcesses() { finish(); }

void RankProcesses::finish() {
  kill_all();
  if (!mpirun_) return;
  const pid_t pid = mpirun_->id();
  mpirun_.reset();
  remove_leftovers(pid, job_);
}

void RankProcesses::start(const std::vector<std::string>& command, Variables variables) {
  variables[kFleetVariable] = name_;
  // SIGTERM, should this process be killed: mpirun then still removes its own files.
  mpirun_.emplace(command, /*read_output=*/false, /*death_signal=*/SIGTERM, to_entries(variables));
  mpirun_->close_input();
}

void RankProcesses::poll(RankListener& listener, int wake_fd) {
  std::vector<pollfd> events = {{wake_fd, POLLIN, 0},
                                {order_listener_.get(), POLLIN, 0},
                                {message_listener_.get(), POLLIN, 0}};
  for (const auto& rank : ranks_) {
    const bool held = rank->number == 0 && listener.is_full();
    const short wanted =
        static_cast<short>((held ? 0 : POLLIN) | (rank->outgoing.empty() ? 0 : POLLOUT));
    events.push_back({rank->gone ? -1 : rank->orders.get(), POLLIN, 0});
    events.push_back({rank->gone || wanted == 0 ? -1 : rank->messages.get(), wanted, 0});
  }
  (void)::poll(events.data(), events.size(), kLookEveryMs);
  const size_t known = ranks_.size();
  for (size_t i = 0; i < known; ++i) {
    Rank& rank = *ranks_[i];
    if (events[3 + 2 * i].revents != 0) hear(rank, listener);  // first: it has the rank's number
    if (rank.gone) continue;
    if ((events[4 + 2 * i].revents & ~POLLOUT) != 0) read_frames(rank, listener, false);
    while (!rank.outgoing.empty() && rank.outgoing.front().send(rank.messages.get()))
      rank.outgoing.pop_front();
  }
  accept_all();
  if (!status_) status_ = mpirun_->wait(0);
  if (end_at_ && Clock::now() - *end_at_ > kLeaveLimit) kill_all();
}

// A rank connects for messages after it has been welcomed on its connection for orders.
void RankProcesses::accept_all() {
  while (auto caller = accept_caller(order_listener_)) {
    const int fd = caller->socket.get();
    auto rank = std::make_unique<Rank>();
    rank->pid = caller->pid;
    rank->orders = std::move(caller->socket);
    ranks_.push_back(std::move(rank));
    send_welcome(fd, {STDOUT_FILENO, STDERR_FILENO});
    if (exit_code_) send_order(fd, {Order::What::leave, *exit_code_});
  }
  while (auto caller = accept_caller(message_listener_)) {
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& known) {
      return known->pid == caller->pid && !known->gone;
    });
    if (rank != ranks_.end()) (*rank)->messages = std::move(caller->socket);
  }
}

void RankProcesses::hear(Rank& rank, RankListener& listener) {
  bool gone = false;
  std::string words;
  while (const auto report = receive_report(rank.orders.get(), gone, &words)) {
    switch (report->what) {
      case JobReport::What::start:
        rank.number = report->value;
        job_ = report->detail;
        break;
      case JobReport::What::verdict:
        break;
      case JobReport::What::words:
        listener.on_words(
            static_cast<Culprit>(report->detail) == Culprit::sender ? rank.number : -1,
            static_cast<ErrorKind>(report->value), words);
        break;
      case JobReport::What::end:
        rank.end = report->value;
        break;
    }
  }
  if (!gone) return;
  read_frames(rank, listener, /*to_the_end=*/true);
  rank.gone = true;
  rank.outgoing.clear();
  if (!rank.end) listener.on_lost(rank.number, rank.pid);
}

void RankProcesses::read_frames(Rank& rank, RankListener& listener, bool to_the_end) {
  bool gone = rank.messages.get() < 0;
  try {
    while (!gone && (to_the_end || rank.number != 0 || !listener.is_full())) {
      auto frame = rank.reader.read(rank.messages.get(), gone);
      if (!frame) break;
      listener.on_frame(rank.number, std::move(*frame), rank.reader.frame_bytes());
    }
  } catch (...) {
    rank.messages = Socket();  // what follows would be read as something else
    throw;
  }
  if (gone) rank.messages = Socket();
}

void RankProcesses::send_all(const std::shared_ptr<const PackedFrame>& frame) {
  for (const auto& rank : ranks_) {
    if (!rank->gone && rank->messages.get() >= 0) rank->outgoing.emplace_back(frame);
  }
}

void RankProcesses::order_all(const Order& order) {
  for (const auto& rank : ranks_) {
    if (!rank->gone) send_order(rank->orders.get(), order);
  }
}

void RankProcesses::end_all(int exit_code) {
  if (end_at_) return;
  exit_code_ = exit_code;
  end_at_ = Clock::now();
  order_all({Order::What::leave, exit_code});
  if (mpirun_ && !status_) ::kill(mpirun_->id(), SIGTERM);
}

// A process id cannot have gone to another process while its socket is open.
void RankProcesses::kill_all() {
  for (const auto& rank : ranks_) {
    if (!rank->gone) ::kill(rank->pid, SIGKILL);
  }
  if (mpirun_ && !status_) mpirun_->kill();
}

bool RankProcesses::over() const {
  return !mpirun_ || (status_ && std::all_of(ranks_.begin(), ranks_.end(),
                                             [](const auto& rank) { return rank->gone; }));
}

std::vector<int> RankProcesses::started() const {
  std::vector<int> numbers;
  for (const auto& rank : ranks_) {
    if (rank->number >= 0) numbers.push_back(rank->number);
  }
  return numbers;
}

std::vector<int> RankProcesses::not_running() const {
  std::vector<int> numbers;
  for (const auto& rank : ranks_) {
    if (rank->number >= 0 && (rank->gone || !is_running(rank->pid)))
      numbers.push_back(rank->number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace flotilla::fleet
