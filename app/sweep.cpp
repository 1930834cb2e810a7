// flotilla sweep: many jobs from one file, in one process a rank, with everything loaded once.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "app/command.h"
#include "app/controller.h"
#include "app/launcher.h"
#include "app/options.h"
#include "app/process.h"
#include "app/sweep_report.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/rank_context.h"
#include "config/sweep.h"
#include "pipeline/sweep.h"

namespace flotilla::app {
namespace {

using pipeline::SweepSelection;

constexpr Usage kUsage = {
    "sweep",
    "flotilla sweep SWEEP.yaml [options]\n       flotilla sweep --ranks N SWEEP.yaml [options]",
    "Makes the clips of all points of SWEEP.yaml (docs/sweep.md), with the models loaded once.\n"
    "The same command again goes on: points that are done stay, as long as their files are there.\n"
    "In a Slurm array, without --point and --shard, each element makes its part of the points.",
    "SWEEP.yaml", /*many_ranks=*/true};

std::optional<int64_t> parse_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

SweepSelection parse_shard(const std::string& text) {
  const size_t slash = text.find('/');
  const auto number = parse_number(std::string_view(text).substr(0, slash));
  const auto count = slash == std::string::npos
                         ? std::nullopt
                         : parse_number(std::string_view(text).substr(slash + 1));
  if (!number || !count || *number < 1 || *number > *count)
    fail(ErrorKind::usage,
         fmt::format("--shard {}: expected i/n, 1/3 to 3/3 for three shards", excerpt(text)));
  return {SweepSelection::What::shard, *number, *count};
}

std::optional<int64_t> array_variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::nullopt : parse_number(text);
}

// An element of an array 0-k with fewer elements than points makes a shard, any other one the point
// of its number; nothing for one beyond the last point.
std::optional<SweepSelection> array_selection(int64_t element, int64_t num_points) {
  const int64_t first = array_variable("SLURM_ARRAY_TASK_MIN").value_or(element);
  const int64_t last = array_variable("SLURM_ARRAY_TASK_MAX").value_or(element);
  const int64_t count = array_variable("SLURM_ARRAY_TASK_COUNT").value_or(1);
  const bool is_whole = first == 0 && last + 1 == count && count > 1;
  if (is_whole && count < num_points)
    return SweepSelection{SweepSelection::What::shard, element + 1, count};
  if (element < num_points) return SweepSelection{SweepSelection::What::point, element, 1};
  log::info("sweep", "element {} of the array has no point: there are {}", element, num_points);
  return std::nullopt;
}

// Nothing: no point is for this process.
std::optional<SweepSelection> selection_of(const po::variables_map& values, int64_t num_points) {
  const bool has_point = values.count("point") != 0;
  if (has_point && values.count("shard") != 0)
    fail(ErrorKind::usage, "--point and --shard: give one of the two");
  if (values.count("shard") != 0) return parse_shard(values["shard"].as<std::string>());
  if (has_point)
    return SweepSelection{SweepSelection::What::point, values["point"].as<int64_t>(), 1};
  const bool runs = values.count("list") == 0 && values.count("dry-run") == 0;
  if (const auto element = array_variable("SLURM_ARRAY_TASK_ID"); element && runs)
    return array_selection(*element, num_points);
  return SweepSelection{};
}

void add_sweep_options(po::options_description& options) {
  auto add = options.add_options();
  add("count", "print the number of points and stop");
  add("list", "print the points and what became of them, and stop");
  add("point", po::value<int64_t>()->value_name("I"), "make point I only, from 0");
  add("shard", po::value<std::string>()->value_name("i/n"),
      "make the i-th of n parts only, from 1; shards may run at the same time");
  add("retry-failed", "make points again that have failed");
  add("dry-run", "check every point, tell its memory, and stop");
  add("json", "results as JSON");
}

void print_count(int64_t num_points, bool as_json) {
  if (as_json) {
    fmt::print("{{\"points\": {}}}\n", num_points);
  } else {
    fmt::print("{}\n", num_points);
  }
}

void check_modes(const po::variables_map& values) {
  const auto given = values.count("count") + values.count("list") + values.count("dry-run");
  if (given > 1) fail(ErrorKind::usage, "--count, --list and --dry-run: give one of them");
}

int run_on(const config::Sweep& sweep, const pipeline::SweepSettings& settings, bool as_json,
           const pipeline::Ranks& ranks) {
  pipeline::Host surroundings = host();
  surroundings.fault = test_fault();
  const auto result = pipeline::run_sweep(sweep, settings, surroundings, ranks);
  if (ranks.is_driver()) report_points(sweep, result, as_json);
  if (result.num_failed == 0) return 0;
  if (ranks.is_driver())
    log::error(to_string(ErrorKind::failed_jobs),
               "{} of {} points have failed; --retry-failed makes them again", result.num_failed,
               result.points.size());
  return exit_code(ErrorKind::failed_jobs);
}

// What ends without a run; nothing when the sweep is to run.
std::optional<int> tell_only(const config::Sweep& sweep, const SweepSelection& selection,
                             const po::variables_map& values) {
  const LaunchedRanks launched = launched_ranks();
  const bool as_json = values.count("json") != 0;
  if (values.count("list") != 0) {
    if (launched.rank == 0) list_points(sweep, selection, as_json);
    return 0;
  }
  if (values.count("dry-run") == 0) return std::nullopt;
  if (launched.rank != 0) return 0;
  const auto control = control_request(values);
  const int64_t world_size = control ? control->ranks : launched.world_size;
  const int64_t num_failed = forecast_points(sweep, selection, host(), world_size, as_json);
  return num_failed == 0 ? 0 : exit_code(ErrorKind::failed_jobs);
}

}  // namespace

int sweep(const Arguments& arguments) {
  po::options_description options = job_options({.only = {}, .without = {"output."}});
  add_sweep_options(options);
  add_control_options(options);
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  check_modes(*values);
  auto control = control_request(*values);
  const std::string file = positional(kUsage, *values);
  if (control && control->ranks > 1 && file == "-")
    fail(ErrorKind::usage, "--ranks: standard input reaches one process only; name a sweep file");
  const config::Sweep sweep = config::load_sweep(file, job_overrides(*values));
  const auto num_points = static_cast<int64_t>(sweep.points.size());
  if (values->count("count") != 0) {
    if (launched_ranks().rank == 0) print_count(num_points, values->count("json") != 0);
    return 0;
  }
  const auto selection = selection_of(*values, num_points);
  if (!selection) return 0;
  pipeline::select_points(sweep, *selection);  // refused here, before the ranks are open
  if (const auto code = tell_only(sweep, *selection, *values)) return *code;
  if (control && control->ranks > 1) {
    control->command = kUsage.command;
    return control_ranks(*control, arguments, /*can_stop=*/true);
  }
  hold_first_signal();
  const bool as_json = values->count("json") != 0;
  const pipeline::SweepSettings settings{
      .selection = *selection,
      .retry_failed = values->count("retry-failed") != 0,
      .stop = {.signal = held_signal, .allocation_end = allocation_end()}};
  if (launched_ranks().world_size == 1) return run_on(sweep, settings, as_json, {});
  return comm::run_on_ranks({.environment = host().variable}, [&](comm::RankContext& context) {
    return run_on(sweep, settings, as_json, {&context});
  });
}

}  // namespace flotilla::app
