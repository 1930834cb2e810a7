#include "app/job_listener.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "app/failure.h"
#include "app/launcher.h"
#include "base/text.h"
#include "pipeline/job_events.h"

namespace flotilla::app {

void add_events_options(po::options_description& options) {
  auto add = options.add_options();
  add("events", po::value<std::string>()->value_name("FILE"),
      "tell of phases, steps and the end as JSON lines, at the end of FILE; "
      "\"-\": standard output");
  add("preview-every", po::value<std::string>()->value_name("N"),
      "with --events: after every Nth step also a small picture of the clip so far");
}

int64_t preview_every(const po::variables_map& values) {
  if (values.count("preview-every") == 0) return 0;
  const std::string text = values["preview-every"].as<std::string>();
  int64_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 1) {
    fail(
        ErrorKind::usage,
        fmt::format("--preview-every {}: a whole number of steps, 1 or more (2: after every second "
                    "step); leave it away for no pictures",
                    excerpt(text)));
  }
  if (values.count("events") == 0 && values.count("dry-run") == 0)
    fail(ErrorKind::usage, "--preview-every goes with --events, which tells the pictures");
  return steps;
}

JobListener::JobListener(const po::variables_map& values)
    : preview_every_(app::preview_every(values)) {
  if (values.count("events") == 0) return;
  const std::string path = values["events"].as<std::string>();
  owns_stdout_ = path == "-";
  if (launched_ranks().rank == 0) events_ = std::make_unique<io::JsonLinesEvents>(path);
}

void JobListener::tell_failure() {
  if (!events_ || told_) return;
  told_ = true;
  const Failure failure = current_failure();
  events_->emit(pipeline::error_event(failure.kind, failure.text));
}

}  // namespace flotilla::app
