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
#include "fleet/control_socket.h"
#include "fleet/lifeline.h"
#include "fleet/mpirun.h"
#include "gpu/visible_gpus.h"
#include "io/subprocess.h"

namespace flotilla::app {
namespace {

using Clock = std::chrono::steady_clock;
using fleet::Caller;
using fleet::Order;
using fleet::Socket;
using namespace std::chrono_literals;

constexpr int kMostRanks = 1024;
constexpr double kMostGraceSeconds = 86400;
// Until every rank has spoken: libraries may come from a slow disk, and MPI starts afterwards.
constexpr auto kStartLimit = 300s;
// After a fault, for the ranks' own watchdogs and for mpirun to end all.
constexpr auto kFaultLimit = 15s;
// From the order to leave to SIGKILL.
constexpr auto kLeaveLimit = 5s;
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
      : request_(request), can_stop_(can_stop), listener_(fleet::listen_at(socket_name)) {}

  int run(const std::vector<std::string>& command, const fleet::Variables& variables);

 private:
  struct Rank {
    Socket socket;
    pid_t pid = 0;
    int number = -1;         // once it has spoken
    std::optional<int> end;  // its own exit code
    bool gone = false;
  };

  bool is_over() const;
  void wait_for_events();
  void admit(Caller caller);
  void hear(Rank& rank);
  void note_fault();
  void take_signal(int signal);
  void keep_deadlines();
  void end_ranks(int code);
  void kill_all();
  void order_all(const Order& order);

  int num_started() const;
  std::vector<int> missing_ranks() const;  // that have not spoken
  int result() const;
  int explain_loss() const;

  const ControlRequest request_;
  const bool can_stop_;
  const Socket listener_;
  const Socket signals_ = catch_signals();
  std::optional<io::Process> mpirun_;
  std::optional<int> mpirun_status_;
  std::vector<Rank> ranks_;
  std::optional<size_t> first_lost_;  // in ranks_: the first that left without an exit code
  int64_t job_ = 0;                   // Open MPI's number
  int signal_ = 0;                    // the first one
  std::optional<int> verdict_;        // of the rank that reported for all
  std::optional<int> decided_;        // this process ended the job with that code
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> signal_at_, fault_at_, leave_at_;
};

int Controller::run(const std::vector<std::string>& command, const fleet::Variables& variables) {
  // SIGTERM, should this process be killed: mpirun then still removes its own files.
  mpirun_.emplace(command, /*read_output=*/false, /*death_signal=*/SIGTERM,
                  fleet::to_entries(variables));
  mpirun_->close_input();
  log::info("run", "{} ranks through {}", request_.ranks, command.front());
  while (!is_over()) {
    wait_for_events();
    if (!mpirun_status_ && (mpirun_status_ = mpirun_->wait(0))) note_fault();
    keep_deadlines();
  }
  fleet::remove_leftovers(mpirun_->id(), job_);
  return result();
}

bool Controller::is_over() const {
  return mpirun_status_ &&
         std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.gone; });
}

void Controller::wait_for_events() {
  std::vector<pollfd> events = {{listener_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
  for (const Rank& rank : ranks_) events.push_back({rank.gone ? -1 : rank.socket.get(), POLLIN, 0});
  if (::poll(events.data(), events.size(), kLookEveryMs) <= 0) return;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (events[i + 2].revents != 0) hear(ranks_[i]);
  }
  if (events[0].revents != 0) {
    while (auto caller = fleet::accept_caller(listener_)) admit(std::move(*caller));
  }
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info))
    take_signal(static_cast<int>(info.ssi_signo));
}

void Controller::admit(Caller caller) {
  const int fd = caller.socket.get();
  ranks_.push_back({std::move(caller.socket), caller.pid, -1, std::nullopt, false});
  fleet::send_welcome(fd, {STDOUT_FILENO, STDERR_FILENO});
  if (signal_ != 0) fleet::send_order(fd, {Order::What::stop, signal_});
  if (decided_) fleet::send_order(fd, {Order::What::leave, *decided_});
}

void Controller::hear(Rank& rank) {
  bool gone = false;
  while (const auto report = fleet::receive_report(rank.socket.get(), gone)) {
    switch (report->what) {
      case JobReport::What::start:
        rank.number = report->value;
        job_ = report->detail;
        break;
      case JobReport::What::verdict:
        if (!verdict_) verdict_ = report->value;
        note_fault();
        break;
      case JobReport::What::end:
        rank.end = report->value;
        break;
      case JobReport::What::words:  // the rank has logged them itself
        break;
    }
  }
  rank.gone = gone;
  if (!gone || rank.end) return;
  if (!first_lost_) first_lost_ = static_cast<size_t>(&rank - ranks_.data());
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
  order_all({Order::What::stop, signal});
}

void Controller::keep_deadlines() {
  const auto now = Clock::now();
  if (leave_at_) {
    if (now - *leave_at_ > kLeaveLimit) kill_all();
    return;
  }
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
  if (!leave_at_) leave_at_ = Clock::now();
  order_all({Order::What::leave, *decided_});
  if (!mpirun_status_) ::kill(mpirun_->id(), SIGTERM);
}

// A process id cannot have gone to another process while its socket is open.
void Controller::kill_all() {
  for (const Rank& rank : ranks_) {
    if (!rank.gone) ::kill(rank.pid, SIGKILL);
  }
  if (!mpirun_status_) mpirun_->kill();
}

void Controller::order_all(const Order& order) {
  for (const Rank& rank : ranks_) {
    if (!rank.gone) fleet::send_order(rank.socket.get(), order);
  }
}

int Controller::num_started() const {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(),
                                        [](const Rank& rank) { return rank.number >= 0; }));
}

std::vector<int> Controller::missing_ranks() const {
  std::vector<int> missing;
  for (int number = 0; number < request_.ranks; ++number) {
    if (std::none_of(ranks_.begin(), ranks_.end(),
                     [&](const Rank& rank) { return rank.number == number; }))
      missing.push_back(number);
  }
  return missing;
}

int Controller::result() const {
  if (decided_) return *decided_;
  if (num_started() == 0) {
    const std::string words = mpirun_->errors();
    fail(ErrorKind::machine,
         fmt::format("mpirun did not start the ranks ({}){}{}",
                     io::describe_status(*mpirun_status_), words.empty() ? "" : ": ", words));
  }
  // A rank that was lost first is the reason for what the others met, unless one has said more.
  if (verdict_ || first_lost_ || num_started() < request_.ranks) return explain_loss();
  for (const Rank& rank : ranks_) {
    if (*rank.end != 0) return *rank.end;
  }
  return 0;
}

int Controller::explain_loss() const {
  // mpirun ends all others a second after the first one's own error.
  for (const Rank& rank : ranks_) {
    if (!verdict_ && rank.end.value_or(0) != 0) return *rank.end;
  }
  if (!verdict_ && signal_ != 0) return 128 + signal_;  // a batch system ended all of them
  if (!verdict_) {
    log::error(to_string(ErrorKind::communication), "{}",
               first_lost_ ? fmt::format("rank {} ended (process {})", ranks_[*first_lost_].number,
                                         ranks_[*first_lost_].pid)
                           : fmt::format("{} of {} ranks never started",
                                         request_.ranks - num_started(), request_.ranks));
  }
  const int killed_by = WIFEXITED(*mpirun_status_) ? WEXITSTATUS(*mpirun_status_) - 128 : 0;
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
