#include "app/controller.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include "app/launcher.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/launch.h"
#include "fleet/lifeline.h"
#include "fleet/mpirun.h"
#include "fleet/rank_group.h"
#include "gpu/visible_gpus.h"
#include "io/subprocess.h"

namespace flotilla::app {
namespace {

using Clock = std::chrono::steady_clock;
using fleet::Order;
using fleet::Socket;
using Rank = fleet::RankGroup::Rank;
using namespace std::chrono_literals;

constexpr int kMostRanks = 1024;
constexpr double kMostGraceSeconds = 86400;
// Until every rank has spoken: libraries may come from a slow disk, and MPI starts afterwards.
constexpr auto kStartLimit = 300s;
// After a fault, for the ranks' own watchdogs and for mpirun to end all.
constexpr auto kFaultLimit = 15s;
// Some launchers deliver a signal twice.
constexpr auto kSameSignal = 200ms;
constexpr int kLookEveryMs = 100;

// Takes the signals out of their handlers' hands; those that the caller ignores (nohup) stay so.
Socket catch_signals() {
  sigset_t caught;
  sigemptyset(&caught);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&caught, signal);
  }
  pthread_sigmask(SIG_BLOCK, &caught, nullptr);
  return Socket(::signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK));
}

class Controller {
 public:
  Controller(const ControlRequest& request, bool can_stop, const std::string& socket_name)
      : request_(request), can_stop_(can_stop), group_(socket_name) {}

  int run(const std::vector<std::string>& command, const fleet::Variables& variables);

 private:
  void wait_for_events();
  void admit_all();
  void hear(size_t index);
  void note_fault();
  void take_signal(int signal);
  void keep_deadlines();
  void end_ranks(int code);

  int num_started() const { return static_cast<int>(group_.started().size()); }
  std::vector<int> missing_ranks() const;  // that have not spoken
  int result() const;
  int explain_loss() const;

  const ControlRequest request_;
  const bool can_stop_;
  fleet::RankGroup group_;
  const Socket signals_ = catch_signals();
  std::optional<size_t> first_lost_;  // in the group: the first that left without an exit code
  int signal_ = 0;                    // the first one
  std::optional<int> verdict_;        // of the rank that reported for all
  std::optional<int> decided_;        // this process ended the job with that code
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> signal_at_, fault_at_;
};

int Controller::run(const std::vector<std::string>& command, const fleet::Variables& variables) {
  group_.start(command, variables);
  log::info("run", "{} ranks through {}", request_.ranks, command.front());
  while (!group_.over()) {
    wait_for_events();
    group_.look();
    if (group_.launcher_status()) note_fault();
    keep_deadlines();
  }
  return result();
}

void Controller::wait_for_events() {
  std::vector<pollfd> events = group_.events();
  const size_t known = group_.ranks().size();
  events.push_back({signals_.get(), POLLIN, 0});
  if (::poll(events.data(), events.size(), kLookEveryMs) <= 0) return;
  for (size_t i = 0; i < known; ++i) {
    if (events[1 + i].revents != 0) hear(i);
  }
  admit_all();
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info))
    take_signal(static_cast<int>(info.ssi_signo));
}

void Controller::admit_all() {
  const size_t known = group_.ranks().size();
  group_.admit_all();
  if (signal_ == 0) return;
  for (size_t i = known; i < group_.ranks().size(); ++i)
    fleet::send_order(group_.ranks()[i].orders.get(), {Order::What::stop, signal_});
}

void Controller::hear(size_t index) {
  const bool has_left = group_.hear(index, [&](const JobReport& report, const std::string&) {
    if (report.what != JobReport::What::verdict) return;
    if (!verdict_) verdict_ = report.value;
    note_fault();
  });
  if (!has_left || group_.ranks()[index].end) return;
  if (!first_lost_) first_lost_ = index;
  note_fault();
}

void Controller::note_fault() {
  if (!fault_at_) fault_at_ = Clock::now();
}

void Controller::take_signal(int signal) {
  const auto now = Clock::now();
  if (signal_at_ && now - *signal_at_ < kSameSignal) return;
  if (signal_ != 0 || !can_stop_) return end_ranks(128 + signal);
  signal_ = signal;
  signal_at_ = now;
  group_.order_all({Order::What::stop, signal});
}

void Controller::keep_deadlines() {
  if (group_.is_ending()) return;
  const auto now = Clock::now();
  if (fault_at_ && now - *fault_at_ > kFaultLimit)
    return end_ranks(verdict_.value_or(exit_code(ErrorKind::communication)));
  if (signal_at_ && now - *signal_at_ > std::chrono::duration<double>(request_.grace_s)) {
    log::warn("run", "the ranks have not stopped in the {:g} s of --grace: they are ended",
              request_.grace_s);
    return end_ranks(128 + signal_);
  }
  if (now - start_ > kStartLimit && num_started() < request_.ranks) {
    log::error(to_string(ErrorKind::communication), "{} of {} ranks have not started in {} s: {}",
               request_.ranks - num_started(), request_.ranks, kStartLimit.count(),
               fmt::join(missing_ranks(), ", "));
    end_ranks(exit_code(ErrorKind::communication));
  }
}

void Controller::end_ranks(int code) {
  if (!decided_) decided_ = code;
  group_.end_all(*decided_);
}

std::vector<int> Controller::missing_ranks() const {
  const auto started = group_.started();
  std::vector<int> missing;
  for (int number = 0; number < request_.ranks; ++number) {
    if (!std::binary_search(started.begin(), started.end(), number)) missing.push_back(number);
  }
  return missing;
}

int Controller::result() const {
  if (decided_) return *decided_;
  if (num_started() == 0) {
    const std::string words = group_.launcher_errors();
    fail(ErrorKind::machine, fmt::format("mpirun did not start the ranks ({}){}{}",
                                         io::describe_status(*group_.launcher_status()),
                                         words.empty() ? "" : ": ", words));
  }
  // A rank that was lost first is the reason for what the others met, unless one has said more.
  if (verdict_ || first_lost_ || num_started() < request_.ranks) return explain_loss();
  for (const Rank& rank : group_.ranks()) {
    if (*rank.end != 0) return *rank.end;
  }
  return 0;
}

int Controller::explain_loss() const {
  // mpirun ends all others a second after the first one's own error.
  for (const Rank& rank : group_.ranks()) {
    if (!verdict_ && rank.end.value_or(0) != 0) return *rank.end;
  }
  if (!verdict_ && signal_ != 0) return 128 + signal_;  // a batch system ended all of them
  if (!verdict_) {
    log::error(to_string(ErrorKind::communication), "{}",
               first_lost_
                   ? fmt::format("rank {} ended (process {})", group_.ranks()[*first_lost_].number,
                                 group_.ranks()[*first_lost_].pid)
                   : fmt::format("{} of {} ranks never started", request_.ranks - num_started(),
                                 request_.ranks));
  }
  const int status = *group_.launcher_status();
  const int killed_by = WIFEXITED(status) ? WEXITSTATUS(status) - 128 : 0;
  if (first_lost_ && killed_by > 0 && killed_by < NSIG)
    log::warn("run", "mpirun saw a rank end by signal {} ({})", killed_by, strsignal(killed_by));
  return verdict_.value_or(exit_code(ErrorKind::communication));
}

int parse_ranks(const std::string& text) {
  if (text == "auto") return std::max<int>(1, static_cast<int>(gpu::visible_gpus().size()));
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1 || ranks > kMostRanks)
    fail(ErrorKind::usage, fmt::format("--ranks {}: 1 to {}, or auto", excerpt(text), kMostRanks));
  return ranks;
}

}  // namespace

void add_control_options(po::options_description& options) {
  auto add = options.add_options();
  add("ranks", po::value<std::string>()->value_name("N"),
      "start N ranks through mpirun and look after them; auto: one for each GPU, without GPUs one");
  add("grace", po::value<double>()->value_name("SECONDS"),
      "with --ranks: how long ranks may take to stop after a signal (120)");
  add("mpirun", po::value<std::string>()->value_name("PATH"), "with --ranks: the mpirun to start");
}

std::optional<ControlRequest> control_request(const po::variables_map& values) {
  if (host().variable(fleet::kControllerVariable) != nullptr) return std::nullopt;
  if (values.count("ranks") == 0) {
    for (const char* option : {"grace", "mpirun"}) {
      if (values.count(option) != 0)
        fail(ErrorKind::usage, fmt::format("--{} goes with --ranks only", option));
    }
    return std::nullopt;
  }
  if (comm::find_launch(host().variable)) {
    fail(ErrorKind::usage,
         "--ranks starts mpirun itself: use it without mpirun or srun in front, or leave it away");
  }
  ControlRequest request{.ranks = parse_ranks(values["ranks"].as<std::string>())};
  if (values.count("grace") != 0) request.grace_s = values["grace"].as<double>();
  if (!(request.grace_s > 0 && request.grace_s <= kMostGraceSeconds))
    fail(ErrorKind::usage, fmt::format("--grace {:g}: seconds, more than 0 and at most {:g}",
                                       request.grace_s, kMostGraceSeconds));
  if (values.count("mpirun") != 0) request.mpirun = values["mpirun"].as<std::string>();
  return request;
}

int control_ranks(const ControlRequest& request, const Arguments& arguments, bool can_stop) {
  Arguments with_name = {request.command};
  with_name.insert(with_name.end(), arguments.begin(), arguments.end());
  const auto command = fleet::mpirun_command(fleet::find_mpirun(request.mpirun, host().search_path),
                                             request.ranks, fleet::own_program(), with_name);
  const std::string socket_name = fleet::new_socket_name();
  Controller controller(request, can_stop, socket_name);
  fleet::Variables variables = fleet::own_variables();
  fleet::add_launch_defaults(variables, request.ranks);
  variables[fleet::kControllerVariable] = socket_name;
  return controller.run(command, variables);
}

}  // namespace flotilla::app
