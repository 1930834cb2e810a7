// flotilla bench pipeline: seconds per phase of a job, over repeated runs in one process.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "gpu/device.h"
#include "io/file_bytes.h"
#include "pipeline/run_job.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {"bench pipeline", "flotilla bench pipeline --job JOB.yaml [options]",
                          "Runs the job several times, drops the frames, and prints the seconds of "
                          "each phase, weights loaded anew in\n"
                          "each run. Encoding into a file is not part of it.",
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

Measured measure(const pipeline::PreparedJob& prepared, int warmup, int repeat) {
  Measured measured;
  auto& rows = measured.rows;
  for (int i = -warmup; i < repeat; ++i) {
    const pipeline::Phases phases = pipeline::run_without_outputs(prepared);
    measured.peak_host_bytes =
        std::max(measured.peak_host_bytes, phases.peak_memory().host_bytes.value_or(0));
    if (i < 0) continue;
    auto all = phases.seconds();
    all.emplace_back("total", phases.total_s());
    rows.resize(all.size());
    for (size_t p = 0; p < all.size(); ++p) {
      rows[p].phase = all[p].first;
      rows[p].seconds.push_back(all[p].second);
    }
  }
  return measured;
}

void print_table(const pipeline::PreparedJob& prepared, const Measured& measured, int warmup,
                 int repeat) {
  const auto& rows = measured.rows;
  const auto& plan = prepared.plan;
  fmt::print("# flotilla bench pipeline {} ({})  torch {}  {}  ranks 1  warmup {}  iters {}\n",
             kVersion, kCommit, kTorchVersion, gpu::device_name(plan.device), warmup, repeat);
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
  const std::string text = json.dump(1) + "\n";
  PendingFile file(path, /*overwrite=*/true);
  io::write_bytes(file.temporary(), path,
                  {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  file.commit();
}

}  // namespace

int bench_pipeline(const Arguments& arguments) {
  po::options_description options = job_options();
  options.add_options()("job", po::value<std::string>()->value_name("JOB.yaml"),
                        "the job to measure")("warmup", po::value<int>()->default_value(1),
                                              "runs that are not counted")(
      "iters", po::value<int>()->default_value(3), "runs that are")(
      "json", po::value<std::string>()->value_name("FILE"), "write the times of every run there");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  positional(kUsage, *values);  // the word "pipeline" itself, and nothing behind it
  if (values->count("job") == 0) fail(ErrorKind::usage, "bench pipeline needs --job JOB.yaml");
  const int warmup = (*values)["warmup"].as<int>();
  const int iters = (*values)["iters"].as<int>();
  if (warmup < 0 || iters < 1)
    fail(ErrorKind::usage, "--warmup must be 0 or more, --iters 1 or more");
  const std::string json = values->count("json") != 0 ? (*values)["json"].as<std::string>() : "";
  if (!json.empty()) check_output_place(json, /*overwrite=*/true);
  const auto loaded = config::load_job((*values)["job"].as<std::string>(), job_overrides(*values));
  const auto prepared = pipeline::prepare_job(loaded, host(), pipeline::Outputs::ignored);
  const auto measured = measure(prepared, warmup, iters);
  print_table(prepared, measured, warmup, iters);
  if (!json.empty()) write_json(json, measured);
  return 0;
}

}  // namespace flotilla::app
