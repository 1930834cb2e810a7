#include "app/fleet_keeper.h"

#include <pthread.h>

#include <csignal>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "pipeline/job_events.h"

namespace flotilla::app {
namespace {

using nlohmann::json;

// Signals are for the server's thread.
std::thread start_quietly(auto body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

bool is_kind(const json& event, const char* kind) { return event.value("event", "") == kind; }

}  // namespace

FleetKeeper::FleetKeeper(KeeperOptions options) : options_(std::move(options)) {
  thread_ = start_quietly([this] { serve(); });
}

FleetKeeper::~FleetKeeper() {
  close(SIGTERM);
  thread_.join();
}

// ---- The server's calls.

void FleetKeeper::submit(json job) {
  const std::lock_guard lock(mutex_);
  FLOTILLA_ASSERT(state_ == State::ready);
  state_ = State::running;
  stop_reason_ = 0;
  job_ = std::move(job);
  changed_.notify_all();
}

void FleetKeeper::cancel(int reason) {
  {
    const std::lock_guard lock(mutex_);
    stop_reason_ = reason;  // also for a job that has not reached the ranks yet
  }
  if (const auto ranks = controller()) ranks->cancel(reason);
}

void FleetKeeper::close(int reason) {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  cancel(reason);
}

void FleetKeeper::force() {
  if (const auto ranks = controller()) ranks->shutdown();
}

std::vector<json> FleetKeeper::take_news() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

FleetKeeper::State FleetKeeper::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

ResidentFacts FleetKeeper::residents() const {
  const std::lock_guard lock(mutex_);
  return residents_;
}

int FleetKeeper::num_starts() const {
  const std::lock_guard lock(mutex_);
  return num_starts_;
}

std::optional<Error> FleetKeeper::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::shared_ptr<fleet::Controller> FleetKeeper::controller() const {
  const std::lock_guard lock(mutex_);
  return controller_;
}

// ---- The thread.

bool FleetKeeper::is_closing() const {
  const std::lock_guard lock(mutex_);
  return closing_;
}

void FleetKeeper::set_state(State state) {
  {
    const std::lock_guard lock(mutex_);
    state_ = state;
  }
  options_.notify();
}

void FleetKeeper::serve() {
  try {
    start_ranks();
    warm_up();
    set_state(State::ready);
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return job_ || closing_; });
      if (!job_) break;
      const json job = *std::exchange(job_, std::nullopt);
      lock.unlock();
      revive();
      settle_job(run_job(job, /*tells=*/true));
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!closing_) failure_ = comm::current_error();
  }
  if (const auto ranks = controller()) ranks->shutdown();
  set_state(State::over);
}

// Errors: those of fleet::Controller.
void FleetKeeper::start_ranks() {
  auto ranks = std::make_shared<fleet::Controller>(options_.fleet);
  const std::lock_guard lock(mutex_);
  controller_ = std::move(ranks);
  ++num_starts_;
}

// Errors: that of a job which cannot be done.
void FleetKeeper::warm_up() {
  if (options_.warm_up.empty()) return;
  set_state(State::warming_up);
  for (const std::string& yaml : options_.warm_up) {
    if (is_closing()) return;
    const json last = run_job(json{{"job_yaml", yaml}}, /*tells=*/false);
    if (is_closing()) return;
    if (const auto failed = failure()) throw Error(*failed).add_context("warm-up");
    log::info("serve", "warmed up by a job of {}", human_duration(last.value("elapsed_s", 0.0)));
  }
}

json FleetKeeper::run_job(const json& job, bool tells) {
  json body = job;
  body["return"] = {"residents"};
  json done = {{"event", "done"}};
  try {
    const auto ranks = controller();
    fleet::Stream stream = ranks->stream(body);
    {
      const std::lock_guard lock(mutex_);
      if (stop_reason_ != 0) ranks->cancel(stop_reason_);
    }
    while (const auto item = stream.next()) {
      if (is_kind(item->body, "done")) {
        done = item->body;  // told when the ranks are free again
      } else {
        take_item(item->body, tells);
      }
    }
    num_losses_ = 0;
    return done;
  } catch (const fleet::PoisonedError& error) {
    ++num_losses_;
    if (!tells || num_losses_ > kMostRestarts) {
      const std::lock_guard lock(mutex_);
      failure_ = error;
    }
    return pipeline::error_event(error.kind(), error.what());
  } catch (const fleet::ClosedError&) {
    return pipeline::error_event(ErrorKind::stopped, "the server has ended before the job had");
  } catch (const Error& error) {
    num_losses_ = 0;
    if (!tells) {
      const std::lock_guard lock(mutex_);
      failure_ = error;
    }
    return pipeline::error_event(error.kind(), error.what());
  }
}

void FleetKeeper::take_item(const json& item, bool tells) {
  {
    const std::lock_guard lock(mutex_);
    if (is_kind(item, "residents")) {
      residents_ = {item.at("models").get<std::vector<std::string>>(),
                    item.at("host_bytes").get<std::vector<int64_t>>(),
                    item.at("device_bytes").get<std::vector<int64_t>>()};
    } else if (tells) {
      news_.push_back(item);
    }
  }
  options_.notify();
}

// Errors: the ranks are lost once too often, or do not come again.
void FleetKeeper::settle_job(json last) {
  const bool lost = num_losses_ > 0;
  {
    const std::lock_guard lock(mutex_);
    news_.push_back(std::move(last));
    state_ = lost ? State::starting : State::ready;
    if (lost) residents_ = {};
    if (failure_) throw Error(*failure_);
  }
  options_.notify();
  if (!lost) return;
  revive();
  set_state(State::ready);
}

// Errors: those of fleet::Controller.
void FleetKeeper::revive() {
  if (controller()->is_alive()) return;
  log::warn("serve", "the ranks are gone; they are started anew");
  force();  // waits for the last process
  start_ranks();
}

}  // namespace flotilla::app
