#include "app/sweep_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>

#include "app/report.h"
#include "base/error.h"
#include "base/text.h"
#include "pipeline/dry_run.h"

namespace flotilla::app {
namespace {

std::string values_text(const config::SweepPoint& point) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : point.values)
    texts.push_back(fmt::format("{}: {}", key, excerpt(value, 40)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

Report describe_point(const config::SweepPoint& point) {
  Report report = {{"point", point.index},
                   {"name", point.name},
                   {"hash", point.hash},
                   {"output", point.loaded.job.output.path.string()},
                   {"values", Report::object()}};
  for (const auto& [key, value] : point.values) report["values"][key] = value;
  return report;
}

size_t name_width(const config::Sweep& sweep) {
  size_t width = 4;
  for (const auto& point : sweep.points) width = std::max(width, point.name.size());
  return width;
}

void print_json(const Report& points) {
  fmt::print("{}\n", points.dump(2, ' ', false, Report::error_handler_t::replace));
}

// In the order of the points, whatever order they are made in.
std::vector<size_t> positions_of(const config::Sweep& sweep,
                                 const pipeline::SweepSelection& selection) {
  std::vector<size_t> positions = pipeline::select_points(sweep, selection);
  std::sort(positions.begin(), positions.end());
  return positions;
}

}  // namespace

void list_points(const config::Sweep& sweep, const pipeline::SweepSelection& selection,
                 bool as_json) {
  const auto positions = positions_of(sweep, selection);
  const auto statuses = pipeline::survey(sweep, positions);
  const size_t width = name_width(sweep);
  Report reports = Report::array();
  if (!as_json) fmt::print("point  {:<{}}  state    settings\n", "name", width);
  for (size_t i = 0; i < positions.size(); ++i) {
    const config::SweepPoint& point = sweep.points[positions[i]];
    const auto state = pipeline::to_string(statuses[i].state);
    if (as_json) {
      reports.push_back(describe_point(point));
      reports.back()["state"] = state;
    } else {
      fmt::print("{:>5}  {:<{}}  {:<7}  {}\n", point.index, point.name, width, state,
                 values_text(point));
    }
  }
  if (as_json) print_json(reports);
}

int64_t forecast_points(const config::Sweep& sweep, const pipeline::SweepSelection& selection,
                        const pipeline::Host& host, int64_t world_size, bool as_json) {
  const size_t width = name_width(sweep);
  int64_t num_failed = 0;
  Report reports = Report::array();
  if (!as_json) fmt::print("point  {:<{}}  memory      would\n", "name", width);
  for (const size_t position : positions_of(sweep, selection)) {
    config::LoadedJob loaded = sweep.points[position].loaded;
    loaded.job.output.overwrite = true;  // files that are there are looked at when the sweep runs
    std::string error;
    int64_t bytes = 0;
    try {
      const auto run = pipeline::dry_run_job(loaded, host, {.world_size = world_size});
      bytes = std::max(run.forecast.peak_device_bytes(), run.forecast.peak_host_bytes());
      pipeline::check_fits(run.forecast);
    } catch (const Error& problem) {
      error = problem.what();
      ++num_failed;
    }
    if (as_json) {
      reports.push_back(describe_point(sweep.points[position]));
      reports.back()["peak_bytes"] = bytes;
      reports.back()["error"] = error;
    } else {
      fmt::print("{:>5}  {:<{}}  {:<10}  {}\n", position, sweep.points[position].name, width,
                 bytes > 0 ? human_bytes(static_cast<double>(bytes)) : "-",
                 error.empty() ? "run" : "fail: " + error);
    }
  }
  if (as_json) print_json(reports);
  return num_failed;
}

void report_points(const config::Sweep& sweep, const pipeline::SweepResult& result, bool as_json) {
  const size_t width = name_width(sweep);
  Report reports = Report::array();
  if (!as_json) fmt::print("point  {:<{}}  state    seconds  exit code\n", "name", width);
  for (const auto& outcome : result.points) {
    const config::SweepPoint& point = sweep.points[outcome.position];
    const auto state = pipeline::to_string(outcome.state);
    if (as_json) {
      reports.push_back(describe_point(point));
      reports.back().update(Report{{"state", state},
                                   {"made_now", outcome.made_now},
                                   {"seconds", outcome.seconds},
                                   {"exit_code", outcome.exit_code},
                                   {"error", outcome.error}});
    } else {
      fmt::print("{:>5}  {:<{}}  {:<7}  {:>7.2f}  {}{}\n", point.index, point.name, width, state,
                 outcome.seconds, outcome.exit_code, outcome.made_now ? "" : "  (before)");
    }
  }
  if (as_json) print_json(reports);
}

}  // namespace flotilla::app
