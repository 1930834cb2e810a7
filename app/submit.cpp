// flotilla submit: a job file goes to a server, its progress comes back.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "app/command.h"
#include "app/job_listener.h"
#include "app/options.h"
#include "app/process.h"
#include "app/server_call.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "config/load.h"
#include "config/writer.h"

namespace flotilla::app {
namespace {

using nlohmann::json;

constexpr Usage kUsage = {
    "submit", "flotilla submit JOB.yaml [options]",
    "Sends the job to a flotilla serve of this machine and waits for its end; the exit code is "
    "that of the job,\n9 when the server is busy. Ctrl-C ends the waiting and leaves the job "
    "running. \"-\": standard input.",
    "JOB.yaml"};

// Shows what a job does as flotilla run shows it.
class JobView {
 public:
  JobView(io::EventSink* events, bool shows_bars, bool prints)
      : events_(events), shows_bars_(shows_bars), prints_(prints) {}

  void show(const json& event) {
    if (events_ != nullptr) events_->emit(event);
    const std::string kind = event.value("event", "");
    if (kind == "accepted") {
      log::info("submit", "job {} begins: {} rank{}, seed {}", event.value("job", 0),
                event.value("world_size", 1), event.value("world_size", 1) == 1 ? "" : "s",
                event.value("seed", uint64_t{0}));
    } else if (kind == "phase") {
      bar_.reset();
    } else if (kind == "step") {
      show_step(event);
    } else if (kind == "done") {
      bar_.reset();
      show_done(event);
    } else if (kind == "error") {
      bar_.reset();
    }
  }

 private:
  void show_step(const json& event) {
    const auto step = event.value("step", int64_t{0});
    const auto steps = event.value("steps", int64_t{1});
    if (!bar_) bar_.emplace(event.value("stage", "steps"), steps, shows_bars_, step - 1);
    bar_->update(step);
  }
  void show_done(const json& event) const {
    log::info("submit", "done in {}{}", human_duration(event.value("elapsed_s", 0.0)),
              event.value("warm", false) ? ", with models that were loaded" : "");
    if (!prints_) return;
    fmt::print("prompt         {}\nseed           {}\n", event.value("prompt", ""),
               event.value("seed", uint64_t{0}));
    const json outputs = event.value("outputs", json::object());
    for (const auto& [name, path] : outputs.items())
      fmt::print("{:<14} {}\n", name, path.get<std::string>());
  }

  io::EventSink* events_;
  bool shows_bars_;
  bool prints_;
  std::optional<Progress> bar_;
};

// With --cancel-on-interrupt: the first signal asks the server to stop the job.
class Interrupt {
 public:
  Interrupt(ServerCall& call, bool cancels) : call_(call), cancels_(cancels) {
    if (cancels_) hold_first_signal();
  }
  void look(const std::optional<int64_t>& job) {
    if (!cancels_ || is_sent_ || !job || held_signal() == 0) return;
    is_sent_ = true;
    call_.send({{"op", "cancel"}, {"job", *job}});
  }

 private:
  ServerCall& call_;
  bool cancels_;
  bool is_sent_ = false;
};

int follow(ServerCall& call, const po::variables_map& values, const JobListener& listener) {
  JobView view(listener.events(), log::enabled(log::Level::info), !listener.owns_stdout());
  Interrupt interrupt(call, values.count("cancel-on-interrupt") != 0);
  std::optional<int64_t> job;
  while (true) {
    const json event = call.next([&] { interrupt.look(job); });
    const std::string kind = event.value("event", "");
    // An answer to the cancel: the job's own end comes after it, or has come before.
    if (kind == "cancelling" || (kind == "error" && job && !event.contains("job"))) continue;
    if (event.contains("job")) job = event.value("job", int64_t{0});
    view.show(event);
    if (kind == "error") return report_error_event(event);
    if (kind == "done") return 0;
    if (kind != "accepted" || values.count("detach") == 0) continue;
    if (!listener.owns_stdout()) fmt::print("job            {}\n", job.value_or(0));
    return 0;
  }
}

}  // namespace

int submit(const Arguments& arguments) {
  po::options_description options = job_options();
  add_socket_option(options);
  auto add = options.add_options();
  add("wait", "wait for the end of the job (as without this option)");
  add("detach", "return once the job is accepted");
  add("cancel-on-interrupt", "a signal (Ctrl-C) stops the job at its next step");
  add_events_options(options);
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  if (values->count("wait") != 0 && values->count("detach") != 0)
    fail(ErrorKind::usage, "--wait and --detach: give one of the two");
  const auto loaded = config::load_job(positional(kUsage, *values), job_overrides(*values));
  const JobListener listener(*values);
  ServerCall call(*values);
  json request = {
      {"op", "submit"}, {"job_yaml", config::to_yaml(loaded.job)}, {"base_folder", "/"}};
  if (listener.preview_every() > 0) request["preview_every"] = listener.preview_every();
  call.send(request);
  return follow(call, *values, listener);
}

}  // namespace flotilla::app
