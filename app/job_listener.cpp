#include "app/job_listener.h"

#include <nlohmann/json.hpp>

#include "app/failure.h"
#include "app/launcher.h"
#include "pipeline/job_events.h"

namespace flotilla::app {

void add_events_option(po::options_description& options) {
  options.add_options()("events", po::value<std::string>()->value_name("FILE"),
                        "tell of phases, steps and the end as JSON lines, at the end of FILE; "
                        "\"-\": standard output");
}

JobListener::JobListener(const po::variables_map& values) {
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
