#include "fleet/rank_processes.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>

namespace flotilla::fleet {
namespace {

constexpr int kLookEveryMs = 50;

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
    : message_listener_(listen_at(message_socket(name_), SocketKind::stream)) {}

void RankProcesses::start(const std::vector<std::string>& command, Variables variables) {
  variables[kFleetVariable] = name_;
  group_.start(command, variables);
}

void RankProcesses::poll(RankListener& listener, int wake_fd) {
  std::vector<pollfd> events = group_.events();
  const size_t known = talks_.size();
  for (size_t i = 0; i < known; ++i) {
    const RankGroup::Rank& rank = group_.ranks()[i];
    const bool held = rank.number == 0 && listener.is_full();
    const short wanted =
        static_cast<short>((held ? 0 : POLLIN) | (talks_[i].outgoing.empty() ? 0 : POLLOUT));
    events.push_back({rank.gone || wanted == 0 ? -1 : talks_[i].messages.get(), wanted, 0});
  }
  events.push_back({wake_fd, POLLIN, 0});
  events.push_back({message_listener_.get(), POLLIN, 0});
  (void)::poll(events.data(), events.size(), kLookEveryMs);
  for (size_t i = 0; i < known; ++i) {
    if (events[1 + i].revents != 0) hear(i, listener);  // first: it has the rank's number
    if (group_.ranks()[i].gone) continue;
    if ((events[1 + known + i].revents & ~POLLOUT) != 0) read_frames(i, listener, false);
    Talk& talk = talks_[i];
    while (!talk.outgoing.empty() && talk.outgoing.front().send(talk.messages.get()))
      talk.outgoing.pop_front();
  }
  group_.admit_all();
  talks_.resize(group_.ranks().size());
  accept_messages();
  group_.look();
}

// A rank connects for messages after it has been welcomed on its connection for orders.
void RankProcesses::accept_messages() {
  while (auto caller = accept_caller(message_listener_)) {
    for (size_t i = 0; i < talks_.size(); ++i) {
      const RankGroup::Rank& rank = group_.ranks()[i];
      if (rank.pid == caller->pid && !rank.gone) talks_[i].messages = std::move(caller->socket);
    }
  }
}

void RankProcesses::hear(size_t index, RankListener& listener) {
  const RankGroup::Rank& rank = group_.ranks()[index];
  const bool has_left = group_.hear(index, [&](const JobReport& report, const std::string& words) {
    if (report.what != JobReport::What::words) return;
    const bool own = static_cast<Culprit>(report.detail) == Culprit::sender;
    listener.on_words(own ? rank.number : -1, static_cast<ErrorKind>(report.value), words);
  });
  if (!has_left) return;
  read_frames(index, listener, /*to_the_end=*/true);
  talks_[index].outgoing.clear();
  if (!rank.end) listener.on_lost(rank.number, rank.pid);
}

void RankProcesses::read_frames(size_t index, RankListener& listener, bool to_the_end) {
  const int number = group_.ranks()[index].number;
  Talk& talk = talks_[index];
  bool gone = talk.messages.get() < 0;
  try {
    while (!gone && (to_the_end || number != 0 || !listener.is_full())) {
      auto frame = talk.reader.read(talk.messages.get(), gone);
      if (!frame) break;
      listener.on_frame(number, std::move(*frame), talk.reader.frame_bytes());
    }
  } catch (...) {
    talk.messages = Socket();  // what follows would be read as something else
    throw;
  }
  if (gone) talk.messages = Socket();
}

void RankProcesses::send_all(const std::shared_ptr<const PackedFrame>& frame) {
  for (size_t i = 0; i < talks_.size(); ++i) {
    if (!group_.ranks()[i].gone && talks_[i].messages.get() >= 0)
      talks_[i].outgoing.emplace_back(frame);
  }
}

std::vector<int> RankProcesses::not_running() const {
  std::vector<int> numbers;
  for (const RankGroup::Rank& rank : group_.ranks()) {
    if (rank.number >= 0 && (rank.gone || !is_running(rank.pid))) numbers.push_back(rank.number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace flotilla::fleet
