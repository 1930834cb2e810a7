#include "fleet/service.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/log.h"
#include "comm/agreement.h"
#include "comm/launch.h"

namespace flotilla::fleet {
namespace {

using namespace std::chrono_literals;

constexpr int kMostRanks = 1024;
// After a rank is lost, for the others to say what they saw: the one that ended may have told why.
constexpr auto kWordsLimit = 1s;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void check_options(const ControllerOptions& options) {
  if (options.ranks < 1 || options.ranks > kMostRanks)
    fail(ErrorKind::usage, fmt::format("a fleet of {} ranks: 1 to {}", options.ranks, kMostRanks));
  if (!(options.start_timeout_s > 0 && options.job_timeout_s >= 0 && options.grace_s >= 0 &&
        options.queue_bytes >= 0))
    fail(ErrorKind::usage, "the limits of a fleet are positive numbers");
  if (!options.devices.empty()) parse_devices(options.devices);
}

Variables rank_variables(const ControllerOptions& options) {
  Variables variables = own_variables();
  const auto launch = comm::find_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  if (launch) {
    fail(ErrorKind::usage,
         "a fleet starts mpirun itself: start the program that holds it without mpirun or srun");
  }
  for (const auto& [name, value] : options.environment) variables[name] = value;
  if (!options.devices.empty()) variables["CUDA_VISIBLE_DEVICES"] = options.devices;
  add_launch_defaults(variables, options.ranks);
  return variables;
}

std::vector<std::string> rank_command(const ControllerOptions& options,
                                      const Variables& variables) {
  std::vector<std::string> worker = options.worker;
  if (worker.empty()) worker = {own_program(), "worker"};
  const auto path = variables.find("PATH");
  return mpirun_command(find_mpirun(options.mpirun, path == variables.end() ? "" : path->second),
                        options.ranks, worker.front(), {worker.begin() + 1, worker.end()});
}

// Signals are for the threads of the program.
std::thread start_quietly(auto body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

std::vector<int> known(int rank) { return rank < 0 ? std::vector<int>{} : std::vector<int>{rank}; }

}  // namespace

Service::Service(ControllerOptions options)
    : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  check_options(options_);
  const Variables variables = rank_variables(options_);
  thread_ = start_quietly([this, command = rank_command(options_, variables), variables] {
    serve(command, variables);
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return state_ != State::starting || over_; });
  if (state_ == State::ready) return;
  const FleetError cause = *cause_;
  lock.unlock();
  shutdown();
  throw StartError(cause.kind(), cause.ranks(), cause.message());
}

Service::~Service() { shutdown(); }

// ---- The faces' calls, from any thread.

void Service::require_free() const {
  if (state_ == State::poisoned)
    throw PoisonedError(cause_->kind(), cause_->ranks(), cause_->message());
  if (state_ == State::closing || over_)
    throw ClosedError(ErrorKind::usage, {}, "the fleet has been shut down");
  if (!job_) return;
  throw ControllerBusyError(
      ErrorKind::failed_jobs, {},
      job_->end ? "the fleet is busy: the stream of its last job has not been read to the end"
                : "the fleet is busy with a job");
}

std::shared_ptr<ServedJob> Service::dispatch(const Message& message) {
  {
    const std::lock_guard lock(mutex_);
    require_free();
  }
  require_utf8(message.body);
  auto frame = std::make_shared<PackedFrame>(FrameKind::job, owned_copy(message));
  const std::lock_guard lock(mutex_);
  require_free();
  job_ = std::make_shared<ServedJob>();
  ++num_jobs_;
  cancel_signal_ = 0;
  outbox_.push_back(std::move(frame));
  ::eventfd_write(wake_.get(), 1);
  return job_;
}

void Service::cancel(int signal) {
  const std::lock_guard lock(mutex_);
  if (!job_ || job_->end) return;
  cancel_signal_ = signal;
  ::eventfd_write(wake_.get(), 1);
}

void Service::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    shutdown_wanted_ = true;
    ::eventfd_write(wake_.get(), 1);
  }
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

bool Service::is_alive() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::ready && !over_ && !shutdown_wanted_;
}

std::optional<Message> Service::next(ServedJob& job) {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return !job.items.empty() || job.end || state_ == State::poisoned || over_; });
  if (!job.items.empty()) {
    ServedJob::Item item = std::move(job.items.front());
    job.items.pop_front();
    job.queued_bytes -= item.bytes;
    ::eventfd_write(wake_.get(), 1);
    return std::move(item.message);
  }
  if (job.read) return std::nullopt;
  if (job.end) {
    job.read = true;
    job_.reset();
    throw_errors(*job.end);
    return std::nullopt;
  }
  if (state_ == State::poisoned)
    throw PoisonedError(cause_->kind(), cause_->ranks(), cause_->message());
  throw ClosedError(ErrorKind::usage, {}, "the fleet was shut down before the job had ended");
}

void Service::abandon(const std::shared_ptr<ServedJob>& job) {
  const std::lock_guard lock(mutex_);
  if (job->read) return;
  job->abandoned = true;
  job->items.clear();
  job->queued_bytes = 0;
  if (job->end) job_.reset();
  ::eventfd_write(wake_.get(), 1);
}

// ---- The thread.

void Service::serve(const std::vector<std::string>& command, const Variables& variables) {
  try {
    processes_.start(command, variables);
    while (!processes_.group().over()) step();
  } catch (...) {
    const Error error = comm::current_error();
    poison(error.kind(), {}, error.what());
    try {
      while (!processes_.group().over()) processes_.poll(*this, wake_.get());
    } catch (const std::exception& again) {
      log::error("fleet", "{}", again.what());
    }
  }
  settle_fault();
  processes_.group().finish();
  const std::lock_guard lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

void Service::step() {
  processes_.poll(*this, wake_.get());
  take_requests();
  if (processes_.group().launcher_status()) note_fault();
  keep_deadlines();
}

void Service::take_requests() {
  eventfd_t ignored = 0;
  ::eventfd_read(wake_.get(), &ignored);
  std::unique_lock lock(mutex_);
  for (const auto& frame : std::exchange(outbox_, {})) processes_.send_all(frame);
  if (const int signal = std::exchange(cancel_signal_, 0); signal != 0)
    processes_.group().order_all({Order::What::cancel, num_jobs_, signal});
  if (!shutdown_wanted_ || state_ == State::closing || state_ == State::poisoned) return;
  const bool was_ready = std::exchange(state_, State::closing) == State::ready;
  const bool stops = job_ && !job_->end;
  lock.unlock();
  closing_at_ = Clock::now();
  if (!was_ready) return processes_.group().end_all(exit_code(ErrorKind::stopped));
  if (stops) processes_.group().order_all({Order::What::stop, SIGTERM});
  processes_.send_all(std::make_shared<PackedFrame>(FrameKind::leave, Message()));
}

void Service::keep_deadlines() {
  if (closing_at_ && seconds_since(*closing_at_) > options_.grace_s)
    processes_.group().end_all(exit_code(ErrorKind::stopped));
  if (fault_at_ && (words_ || Clock::now() - *fault_at_ > kWordsLimit)) settle_fault();
  std::unique_lock lock(mutex_);
  if (state_ == State::starting && seconds_since(start_) > options_.start_timeout_s) {
    lock.unlock();
    return poison(ErrorKind::communication, {}, missing_text());
  }
  if (state_ != State::ready || !job_ || job_->end || options_.job_timeout_s == 0) return;
  if (seconds_since(job_->start) <= options_.job_timeout_s) return;
  lock.unlock();
  poison(ErrorKind::communication, {},
         fmt::format("the job has not ended within its {:g} s", options_.job_timeout_s));
}

// Which ranks did not come, and how far they got.
std::string Service::missing_text() const {
  const auto started = processes_.group().started();
  std::vector<int> silent, slow;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (set_up_.count(rank) != 0) continue;
    const bool has_started = std::find(started.begin(), started.end(), rank) != started.end();
    (has_started ? slow : silent).push_back(rank);
  }
  if (silent.empty() && slow.empty())
    return fmt::format("the ranks did not agree on their set-up within {:g} s",
                       options_.start_timeout_s);
  std::string text = fmt::format("of {} ranks, these did not come within {:g} s: ", options_.ranks,
                                 options_.start_timeout_s);
  if (!silent.empty()) text += ranks_text(silent) + " (not started)";
  if (!slow.empty()) {
    text += (silent.empty() ? "" : ", ") + ranks_text(slow) + " (started, but not set up)";
  }
  return text;
}

void Service::note_fault() {
  if (!fault_at_) fault_at_ = Clock::now();
}

void Service::settle_fault() {
  if (!fault_at_) return;
  if (words_) return poison(words_->kind, words_->at_fault, words_->text);
  // Those that follow the first one are ended by mpirun.
  if (!lost_text_.empty()) return poison(ErrorKind::communication, known(lost_), lost_text_);
  const auto status = processes_.group().launcher_status();
  if (!status) return;
  const std::string errors = processes_.group().launcher_errors();
  const bool came_up = !processes_.group().started().empty();
  poison(came_up ? ErrorKind::communication : ErrorKind::machine, {},
         fmt::format("mpirun ended ({}){}{}", io::describe_status(*status),
                     errors.empty() ? "" : ": ", errors));
}

// A fleet that is being shut down has no faults any more.
void Service::poison(ErrorKind kind, std::vector<int> ranks, std::string text) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::closing && state_ != State::poisoned) {
      state_ = State::poisoned;
      cause_.emplace(kind, std::move(ranks), std::move(text));
      changed_.notify_all();
    }
  }
  processes_.group().end_all(exit_code(kind));
}

void Service::on_frame(int rank, Frame frame, int64_t bytes) {
  if (frame.kind == FrameKind::set_up) {
    set_up_.insert(rank);
    return;
  }
  if (frame.kind == FrameKind::ready) {
    ready_.insert(rank);
    if (static_cast<int>(ready_.size()) < options_.ranks) return;
    const std::lock_guard lock(mutex_);
    if (state_ == State::starting) state_ = State::ready;
    changed_.notify_all();
    return;
  }
  if (rank != 0 || (frame.kind != FrameKind::item && frame.kind != FrameKind::end))
    fail(ErrorKind::communication, fmt::format("rank {} sends what only others send", rank));
  if (frame.kind == FrameKind::end) return end_job(job_end_from(frame.message));
  const std::lock_guard lock(mutex_);
  if (!job_ || job_->abandoned) return;
  job_->items.push_back({std::move(frame.message), bytes});
  job_->queued_bytes += bytes;
  changed_.notify_all();
}

void Service::end_job(const JobEnd& end) {
  const std::lock_guard lock(mutex_);
  if (!job_) return;
  job_->end = end;
  if (job_->abandoned) {
    if (!end.errors.empty())
      log::error("fleet", "a job that nobody waits for failed; {}", describe(end.errors));
    job_.reset();
  }
  changed_.notify_all();
}

void Service::on_words(int rank, ErrorKind kind, std::string text) {
  if (words_) return;
  words_ = Words{kind, std::move(text), known(rank)};
  if (kind == ErrorKind::communication) {  // told by another one than the rank at fault
    words_->at_fault = processes_.not_running();
    std::erase(words_->at_fault, rank);
  }
  note_fault();
}

void Service::on_lost(int rank, pid_t pid) {
  if (lost_text_.empty()) {
    lost_ = rank;
    lost_text_ = fmt::format("{} ended without a word (process {})",
                             rank < 0 ? "a rank" : ranks_text({rank}), pid);
  }
  note_fault();
}

bool Service::is_full() const {
  const std::lock_guard lock(mutex_);
  return job_ && job_->queued_bytes > options_.queue_bytes;
}

}  // namespace flotilla::fleet
