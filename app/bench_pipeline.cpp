// flotilla bench pipeline: seconds per phase of a job, over repeated runs in one process.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/bench_support.h"
#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "gpu/device.h"
#include "io/clock.h"
#include "pipeline/run_job.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {"bench pipeline", "flotilla bench pipeline --job JOB.yaml [options]",
                          "Runs the job several times, drops the frames, and prints the seconds of "
                          "each phase, weights loaded anew in\n"
                          "each run, or kept from run to run with --warm. Encoding into a file is "
                          "not part of it. \"to first step\": from\n"
                          "the start of preparing to the first denoise step.",
                          "\"pipeline\""};

struct Row {
  std::string phase;
  std::vector<double> seconds;  // one a run

  double quantile(double q) const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
  }
};

struct Measured {
  std::vector<Row> rows;
  int64_t peak_host_bytes = 0;
};

// One run, and how long it took from the start of preparing to the first denoise step.
struct Run {
  pipeline::Phases phases;
  double prepare_s = 0;
  double to_first_step_s = 0;
};

double to_first_step_s(const pipeline::Phases& phases, double begin_s) {
  for (const auto& span : phases.spans()) {
    if (span.phase != "stage_1") continue;
    double steps_s = 0;
    for (const double step_s : phases.steps().at("stage_1")) steps_s += step_s;
    return phases.start_time_s() - begin_s + span.end_s - steps_s;
  }
  return 0;
}

Run run_once(const config::LoadedJob& loaded, std::shared_ptr<pipeline::Residents> residents) {
  const double begin_s = io::wall_clock_s();
  const auto prepared = pipeline::prepare_job(loaded, host(), pipeline::Outputs::ignored, {}, {},
                                              std::move(residents));
  const double prepare_s = io::wall_clock_s() - begin_s;
  Run run{pipeline::run_without_outputs(prepared), prepare_s};
  run.to_first_step_s = to_first_step_s(run.phases, begin_s);
  return run;
}

// `residents`: kept from run to run; null: every run is a cold one.
Measured measure(const config::LoadedJob& loaded,
                 const std::shared_ptr<pipeline::Residents>& residents, int warmup, int repeat) {
  Measured measured;
  auto& rows = measured.rows;
  for (int i = -warmup; i < repeat; ++i) {
    const Run run = run_once(loaded, residents);
    measured.peak_host_bytes =
        std::max(measured.peak_host_bytes, run.phases.peak_memory().host_bytes.value_or(0));
    if (i < 0) continue;
    std::vector<std::pair<std::string, double>> all = {{"prepare", run.prepare_s}};
    all.insert(all.end(), run.phases.seconds().begin(), run.phases.seconds().end());
    all.emplace_back("to first step", run.to_first_step_s);
    all.emplace_back("total", run.prepare_s + run.phases.total_s());
    rows.resize(all.size());
    for (size_t p = 0; p < all.size(); ++p) {
      rows[p].phase = all[p].first;
      rows[p].seconds.push_back(all[p].second);
    }
  }
  return measured;
}

void print_table(const pipeline::PreparedJob& prepared, const Measured& measured, bool warm,
                 int warmup, int repeat) {
  const auto& rows = measured.rows;
  const auto& plan = prepared.plan;
  fmt::print("# flotilla bench pipeline {} ({})  torch {}  {}  ranks 1  {}warmup {}  iters {}\n",
             kVersion, kCommit, kTorchVersion, gpu::device_name(plan.device), warm ? "warm  " : "",
             warmup, repeat);
  fmt::print("# {} x {}, {} frames, {}\n", plan.format.width, plan.format.height,
             plan.format.num_frames, config::to_string(prepared.job.precision));
  fmt::print("# {:<16} {:>10} {:>10} {:>10} {:>8}\n# {:<16} {:>10} {:>10} {:>10} {:>8}\n", "phase",
             "min", "p50", "max", "share", "", "(ms)", "(ms)", "(ms)", "(%)");
  const double total = rows.back().quantile(0.5);
  for (const auto& row : rows) {
    fmt::print("  {:<16} {:>10.1f} {:>10.1f} {:>10.1f} {:>8.1f}\n", row.phase,
               1e3 * row.quantile(0), 1e3 * row.quantile(0.5), 1e3 * row.quantile(1),
               100 * row.quantile(0.5) / total);
  }
  fmt::print("# peak host memory {:.1f} MiB\n",
             static_cast<double>(measured.peak_host_bytes) / (1 << 20));
}

void write_json(const std::string& path, const Measured& measured) {
  nlohmann::ordered_json json = {
      {"version", kVersion}, {"commit", kCommit}, {"phases", nlohmann::ordered_json::object()}};
  for (const auto& row : measured.rows) json["phases"][row.phase + "_s"] = row.seconds;
  json["peak_host_bytes"] = measured.peak_host_bytes;
  write_bench_json(path, json);
}

}  // namespace

int bench_pipeline(const Arguments& arguments) {
  po::options_description options = job_options();
  options.add_options()("job", po::value<std::string>()->value_name("JOB.yaml"),
                        "the job to measure")("warmup", po::value<int>()->default_value(1),
                                              "runs that are not counted")(
      "iters", po::value<int>()->default_value(3), "runs that are")(
      "warm", po::bool_switch(), "keep models and encoded prompts between the runs")(
      "json", po::value<std::string>()->value_name("FILE"), "write the times of every run there");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  positional(kUsage, *values);  // the word "pipeline" itself, and nothing behind it
  if (values->count("job") == 0) fail(ErrorKind::usage, "bench pipeline needs --job JOB.yaml");
  const int warmup = (*values)["warmup"].as<int>();
  const int iters = (*values)["iters"].as<int>();
  if (warmup < 0 || iters < 1)
    fail(ErrorKind::usage, "--warmup must be 0 or more, --iters 1 or more");
  const bool warm = (*values)["warm"].as<bool>();
  if (warm && warmup == 0) fail(ErrorKind::usage, "--warm needs --warmup 1 or more");
  const std::string json = values->count("json") != 0 ? (*values)["json"].as<std::string>() : "";
  if (!json.empty()) check_output_place(json, /*overwrite=*/true);
  const auto loaded = config::load_job((*values)["job"].as<std::string>(), job_overrides(*values));
  const auto residents = warm ? std::make_shared<pipeline::Residents>() : nullptr;
  const auto measured = measure(loaded, residents, warmup, iters);
  const auto prepared =
      pipeline::prepare_job(loaded, host(), pipeline::Outputs::ignored, {}, {}, residents);
  print_table(prepared, measured, warm, warmup, iters);
  if (!json.empty()) write_json(json, measured);
  return 0;
}

}  // namespace flotilla::app
