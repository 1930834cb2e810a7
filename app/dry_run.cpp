#include "app/dry_run.h"

#include <fmt/format.h>

#include "app/controller.h"
#include "app/job_listener.h"
#include "app/launcher.h"
#include "app/process.h"
#include "base/error.h"
#include "pipeline/dry_run.h"

namespace flotilla::app {
namespace {

constexpr int kMostRanks = 1024;

int64_t positive_ranks(int value) {
  if (value < 1 || value > kMostRanks)
    fail(ErrorKind::usage, fmt::format("--world {}: 1 to {} ranks", value, kMostRanks));
  return value;
}

int64_t bytes_of(double gib) {
  constexpr double kMostGib = 1 << 20;
  if (!(gib > 0 && gib <= kMostGib))
    fail(ErrorKind::usage, fmt::format("--gpu-memory {:g}: GiB, more than 0", gib));
  return static_cast<int64_t>(gib * (1 << 30));
}

}  // namespace

void add_dry_run_options(po::options_description& options) {
  auto add = options.add_options();
  add("dry-run",
      "check everything, tell plan, memory and traffic, and stop; exit codes are those of the run");
  add("json", "with --dry-run: tell it as JSON");
  add("world", po::value<int>()->value_name("N"), "with --dry-run: plan for N ranks");
  add("gpu-memory", po::value<double>()->value_name("GIB"),
      "with --dry-run: plan for GPUs of this size, one a rank, which need not be here");
  add("measured", po::value<std::string>()->value_name("METRICS.json"),
      "with --dry-run: estimate times by the metrics of a run of the same sizes");
}

void require_no_dry_run_options(const po::variables_map& values) {
  for (const char* option : {"json", "world", "gpu-memory", "measured"}) {
    if (values.count(option) != 0)
      fail(ErrorKind::usage, fmt::format("--{} goes with --dry-run only", option));
  }
}

int dry_run(const config::LoadedJob& loaded, const po::variables_map& values) {
  const LaunchedRanks launched = launched_ranks();
  if (launched.rank != 0) return 0;
  pipeline::DryRunOptions options{.world_size = launched.world_size};
  if (const auto control = control_request(values)) options.world_size = control->ranks;
  if (values.count("world") != 0) options.world_size = positive_ranks(values["world"].as<int>());
  if (values.count("gpu-memory") != 0)
    options.gpu_memory_bytes = bytes_of(values["gpu-memory"].as<double>());
  options.previews = preview_every(values) > 0;
  if (values.count("measured") != 0) options.measured = values["measured"].as<std::string>();
  const pipeline::DryRun run = pipeline::dry_run_job(loaded, host(), options);
  if (values.count("json") != 0) {
    fmt::print("{}\n", pipeline::to_json(run).dump(
                           2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    for (const auto& line : pipeline::describe(run)) fmt::print("{}\n", line);
  }
  pipeline::check_fits(run.forecast);
  return 0;
}

}  // namespace flotilla::app
