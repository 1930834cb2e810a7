// flotilla selftest: does this machine give the results that are promised? A job's latents on one
// rank and on all ranks, in fast and in exact mode, compared.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "base/error.h"
#include "comm/rank_context.h"
#include "pipeline/run_job.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "selftest", "[mpirun -n N] flotilla selftest JOB.yaml [options]",
    "Makes the latents of the job on one rank and on all N, and compares them: the same\n"
    "rank twice (equal bytes), all ranks (reduction order only), and all ranks with\n"
    "reproducible: world (equal bytes). Prints PASSED or FAILED. A small job is best:\n"
    "configs/demo.yaml.",
    "JOB.yaml", /*many_ranks=*/true};

// Another number of ranks changes the order of sums: this much of the largest value, in float32.
constexpr double kFastBound = 1e-4;

using Latents = pipeline::ClipLatents;

// `exact`: reproducible: world.
Latents render(config::LoadedJob loaded, const pipeline::Ranks& ranks, bool exact) {
  if (exact) loaded.job.reproducible = config::Reproducible::world;
  // Left to itself, a guided stage 2 runs in tiles on several ranks: an approximation by design.
  if (loaded.job.stage_2.parallel == config::Stage2Parallel::automatic) {
    loaded.job.stage_2.parallel = config::Stage2Parallel::sp;
  }
  const auto prepared = ranks.agreed(
      [&] { return pipeline::prepare_job(loaded, host(), pipeline::Outputs::ignored, ranks); });
  // On the host: a rank's runs alone and together may be on different GPUs.
  const Latents made = pipeline::run_latents(prepared, ranks);
  return {made.video.cpu(), made.audio.cpu()};
}

// Largest difference over both streams, as a share of the largest value; infinite for NaN.
double difference(const Latents& a, const Latents& b) {
  const auto relative = [](const at::Tensor& x, const at::Tensor& y) {
    const double value = ((x - y).abs().max() / y.abs().max()).item<double>();
    return std::isfinite(value) ? value : INFINITY;
  };
  return std::max(relative(a.video, b.video), relative(a.audio, b.audio));
}

struct Row {
  const char* what;
  double difference;
  double bound;  // 0: equal bytes

  bool passed() const { return difference <= bound; }
};

std::vector<Row> compare(const config::LoadedJob& loaded, const pipeline::Ranks& ranks) {
  std::vector<Row> rows;
  const Latents alone = render(loaded, {}, false);
  rows.push_back({"one rank, twice", difference(render(loaded, {}, false), alone), 0.0});
  const Latents exact = render(loaded, {}, true);
  rows.push_back({"one rank, exact mode", difference(exact, alone), kFastBound});
  if (ranks.world_size() > 1) {
    rows.push_back({"all ranks", difference(render(loaded, ranks, false), alone), kFastBound});
    rows.push_back({"all ranks, exact mode", difference(render(loaded, ranks, true), exact), 0.0});
  }
  return rows;
}

int report(const std::vector<Row>& rows, int world_size) {
  fmt::print("# flotilla selftest {} ({})  ranks {}\n# {:<24} {:>20} {:>12}\n", kVersion, kCommit,
             world_size, "layout", "largest difference", "bound");
  bool passed = true;
  for (const auto& row : rows) {
    passed = passed && row.passed();
    fmt::print("  {:<24} {:>20.3g} {:>12}  {}\n", row.what, row.difference,
               row.bound == 0.0 ? "equal bytes" : fmt::format("{:g}", row.bound),
               row.passed() ? "ok" : "FAILED");
  }
  fmt::print("{}\n", passed ? "PASSED" : "FAILED");
  return passed ? 0 : exit_code(ErrorKind::internal);
}

}  // namespace

int selftest(const Arguments& arguments) {
  const auto values = parse(kUsage, job_options(), arguments);
  if (!values) return 0;
  auto loaded = config::load_job(positional(kUsage, *values), job_overrides(*values));
  if (!loaded.job.seed) loaded.job.seed = 1;
  const auto body = [&](const pipeline::Ranks& ranks) {
    const auto rows = compare(loaded, ranks);
    if (!ranks.is_driver()) return 0;
    return report(rows, ranks.world_size());
  };
  if (launched_ranks().world_size == 1) return body({});
  return comm::run_on_ranks({.environment = host().variable},
                            [&](comm::RankContext& context) { return body({&context}); });
}

}  // namespace flotilla::app
