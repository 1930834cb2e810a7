// flotilla run: a job file becomes a clip.
#include <fmt/format.h>

#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "base/log.h"
#include "comm/rank_context.h"
#include "config/writer.h"
#include "pipeline/outputs.h"
#include "pipeline/run_job.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {"run", "flotilla run JOB.yaml [options]",
                          "Generates the clip that JOB.yaml describes (\"-\": standard input). "
                          "Keys: docs/configuration.md.\n"
                          "Order: defaults < JOB.yaml < options. Paths in the file count from the "
                          "file, those of options from here.",
                          "JOB.yaml", /*many_ranks=*/true};

// The driver's job on every rank, with one seed. The file was read by each rank for itself; what
// counts is the driver's reading, so that a file that changes meanwhile cannot split the ranks.
config::LoadedJob share_job(config::LoadedJob loaded, comm::RankContext& context) {
  if (context.is_driver() && !loaded.job.seed) loaded.job.seed = pipeline::draw_seed();
  const std::string text = context.world().broadcast(config::to_yaml(loaded.job), 0);
  if (context.is_driver()) return loaded;
  return config::load_job_text(text, "the driver's job", "/");
}

int run_loaded(const config::LoadedJob& loaded, const pipeline::Ranks& ranks) {
  const auto outputs = ranks.is_driver() ? pipeline::Outputs::checked : pipeline::Outputs::ignored;
  const pipeline::PreparedJob prepared =
      ranks.agreed([&] { return pipeline::prepare_job(loaded, host(), outputs, ranks); });
  const pipeline::Phases phases = pipeline::run_job(prepared, host(), ranks);
  if (!ranks.is_driver()) return 0;
  fmt::print("prompt         {}\nseed           {}\n", prepared.job.prompt, *prepared.job.seed);
  for (const auto& line : pipeline::describe_outputs(prepared.job, prepared.plan))
    fmt::print("{}\n", line);
  for (const auto& line : pipeline::phase_table(phases)) fmt::print("{}\n", line);
  return 0;
}

}  // namespace

int run(const Arguments& arguments) {
  po::options_description options = job_options();
  options.add_options()("print-config", "print the job in force as YAML and stop");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  auto loaded = config::load_job(positional(kUsage, *values), job_overrides(*values));
  if (values->count("print-config") != 0) {
    fmt::print("{}", config::to_yaml(loaded.job));
    return 0;
  }
  if (launched_ranks().world_size == 1) return run_loaded(loaded, {});
  return comm::run_on_ranks({.environment = host().variable}, [&](comm::RankContext& context) {
    return run_loaded(share_job(std::move(loaded), context), {&context});
  });
}

}  // namespace flotilla::app
