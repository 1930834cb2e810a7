#include "fleet/rank_group.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace flotilla::fleet {
namespace {

using namespace std::chrono_literals;

// From the order to leave to SIGKILL.
constexpr auto kLeaveLimit = 5s;

}  // namespace

void RankGroup::start(const std::vector<std::string>& command, const Variables& variables) {
  // SIGTERM, should this process be killed: mpirun then still removes its own files.
  mpirun_.emplace(command, /*read_output=*/false, /*death_signal=*/SIGTERM, to_entries(variables));
  mpirun_->close_input();
}

std::vector<pollfd> RankGroup::events() const {
  std::vector<pollfd> events = {{listener_.get(), POLLIN, 0}};
  for (const Rank& rank : ranks_) events.push_back({rank.gone ? -1 : rank.orders.get(), POLLIN, 0});
  return events;
}

void RankGroup::admit_all() {
  while (auto caller = accept_caller(listener_)) {
    const int fd = caller->socket.get();
    ranks_.push_back({caller->pid, -1, std::move(caller->socket), std::nullopt, false});
    send_welcome(fd, {STDOUT_FILENO, STDERR_FILENO});
    if (is_ending()) send_order(fd, {Order::What::leave, exit_code_});
  }
}

bool RankGroup::hear(size_t index, const OnReport& on_report) {
  Rank& rank = ranks_[index];
  if (rank.gone) return false;
  std::string words;
  while (const auto report = receive_report(rank.orders.get(), rank.gone, &words)) {
    if (report->what == JobReport::What::start) {
      rank.number = report->value;
      job_ = report->detail;
    }
    if (report->what == JobReport::What::end) rank.end = report->value;
    on_report(*report, words);
  }
  return rank.gone;
}

void RankGroup::look() {
  if (mpirun_ && !status_) status_ = mpirun_->wait(0);
  if (end_at_ && Clock::now() - *end_at_ > kLeaveLimit) kill_all();
}

void RankGroup::order_all(const Order& order) const {
  for (const Rank& rank : ranks_) {
    if (!rank.gone) send_order(rank.orders.get(), order);
  }
}

void RankGroup::end_all(int exit_code) {
  if (is_ending()) return;
  exit_code_ = exit_code;
  end_at_ = Clock::now();
  order_all({Order::What::leave, exit_code});
  if (mpirun_ && !status_) ::kill(mpirun_->id(), SIGTERM);
}

// A process id cannot have gone to another process while its socket is open.
void RankGroup::kill_all() {
  for (const Rank& rank : ranks_) {
    if (!rank.gone) ::kill(rank.pid, SIGKILL);
  }
  if (mpirun_ && !status_) mpirun_->kill();
}

void RankGroup::finish() {
  kill_all();
  if (!mpirun_) return;
  const pid_t pid = mpirun_->id();
  mpirun_.reset();
  remove_leftovers(pid, job_);
}

bool RankGroup::over() const {
  return !mpirun_ || (status_ && std::all_of(ranks_.begin(), ranks_.end(),
                                             [](const Rank& rank) { return rank.gone; }));
}

std::vector<int> RankGroup::started() const {
  std::vector<int> numbers;
  for (const Rank& rank : ranks_) {
    if (rank.number >= 0) numbers.push_back(rank.number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace flotilla::fleet
