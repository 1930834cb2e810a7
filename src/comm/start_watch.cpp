#include "comm/start_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/job_report.h"
#include "base/log.h"
#include "comm/job_board.h"
#include "comm/process.h"
#include "comm/quiet_thread.h"

namespace flotilla::comm {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLookEvery = 250ms;
// A longer time between two looks is one of suspension, or of a machine out of breath.
constexpr double kLongestGapSeconds = 1.0;
// For the rank that reports to print its line, and for the launcher to end all ranks.
constexpr auto kLastWords = 3s;
constexpr size_t kMostIdLetters = 64;

// Letters and digits, so that it fits into a file's name.
std::string as_name(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  return text.substr(0, kMostIdLetters);
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::string launch_id(const Environment& environment) {
  for (const char* name : {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}) {
    if (const char* value = environment(name)) return as_name(value);
  }
  const char* job = environment("SLURM_JOB_ID");
  const char* step = environment("SLURM_STEP_ID");
  return job != nullptr && step != nullptr ? as_name(fmt::format("{}-{}", job, step)) : "";
}

StartWatch::StartWatch(std::optional<Launch> launch, const std::string& id, double limit_s)
    : launch_(std::move(launch)), limit_s_(limit_s) {
  if (!launch_ || launch_->world_size <= 1) return;
  if (!id.empty()) {
    prefix_ = fmt::format("flotilla-start.{}.{}.", ::geteuid(), id);
    set_mark();
  }
  thread_ = start_quietly([this] { run(); });
}

// Without it the others may name this rank, should it come to that.
void StartWatch::set_mark() {
  const std::string name = fmt::format("{}{}.{}", prefix_, launch_->rank, ::getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // sun_path[0] stays 0: the abstract namespace.
  const size_t count = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), count);
  mark_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (mark_ >= 0)
    (void)::bind(mark_, reinterpret_cast<const sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count));
}

StartWatch::~StartWatch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (mark_ >= 0) ::close(mark_);
}

bool StartWatch::sleep() {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, kLookEvery, [this] { return stop_; });
}

void StartWatch::run() {
  Marks seen;
  double still_s = 0.0;
  auto last = Clock::now();
  while (sleep()) {
    const auto now = Clock::now();
    const std::chrono::duration<double> passed = now - std::exchange(last, now);
    still_s += std::min(passed.count(), kLongestGapSeconds);
    Marks now_there = marks();
    // Marks that go belong to ranks that are ready, or that have ended.
    if (now_there.size() > seen.size()) still_s = 0.0;
    seen = std::move(now_there);
    if (still_s > limit_s_) end(seen);
  }
}

// A line ends with the name, "@" before those of the abstract namespace.
StartWatch::Marks StartWatch::marks() const {
  Marks marks;
  if (prefix_.empty()) return marks;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find("@" + prefix_);
    if (at == std::string::npos) continue;
    const std::string_view name = std::string_view(line).substr(at + 1 + prefix_.size());
    const auto rank = number(name.substr(0, name.find('.')));
    const auto process = number(name.substr(name.find('.') + 1));
    if (rank && process) marks[*rank] = *process;
  }
  return marks;
}

std::string StartWatch::text(const Marks& marks) const {
  const std::string limit = fmt::format("{:g} s", limit_s_);
  if (prefix_.empty())
    return fmt::format("MPI did not get ready within {}: ranks are missing", limit);
  std::vector<int> missing;
  for (int rank = 0; rank < launch_->world_size; ++rank) {
    if (marks.count(rank) == 0) missing.push_back(rank);
  }
  if (!missing.empty()) {
    return fmt::format("{} of {} did not start within {}, and the others wait for {}",
                       ranks_text(missing), launch_->world_size, limit,
                       missing.size() == 1 ? "it" : "them");
  }
  for (const auto& [rank, process] : marks) {
    if (look_at(process) == ProcessState::stopped)
      return fmt::format(
          "rank {} (process {}) is stopped, by SIGSTOP or a debugger, and did not "
          "start within {}",
          rank, process, limit);
  }
  return fmt::format("all {} ranks came, but MPI did not get ready within {}", launch_->world_size,
                     limit);
}

void StartWatch::end(const Marks& marks) {
  // All see the same; the lowest rank that can speak does.
  const auto speaker = std::find_if(marks.begin(), marks.end(), [](const auto& mark) {
    return look_at(mark.second) == ProcessState::works;
  });
  constexpr auto kKind = ErrorKind::communication;
  if (speaker == marks.end() || speaker->first == launch_->rank) {
    log::error(to_string(kKind), "{}", text(marks));
    send_report({JobReport::What::verdict, exit_code(kKind)});
    std::this_thread::sleep_for(kLastWords / 3);  // with the mark there, so that the others know
  } else {
    std::this_thread::sleep_for(kLastWords);
  }
  _exit(exit_code(kKind));
}

}  // namespace flotilla::comm
