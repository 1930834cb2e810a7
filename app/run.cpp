// flotilla run: a job file becomes a clip.
#include <fmt/format.h>

#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "base/log.h"
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
                          "JOB.yaml"};

}  // namespace

int run(const Arguments& arguments) {
  po::options_description options = job_options();
  options.add_options()("print-config", "print the job in force as YAML and stop");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  const auto loaded = config::load_job(positional(kUsage, *values), job_overrides(*values));
  if (values->count("print-config") != 0) {
    fmt::print("{}", config::to_yaml(loaded.job));
    return 0;
  }
  const pipeline::PreparedJob prepared = pipeline::prepare_job(loaded, host());
  const pipeline::Phases phases = pipeline::run_job(prepared, host());
  fmt::print("prompt         {}\nseed           {}\n", prepared.job.prompt, *prepared.job.seed);
  for (const auto& line : pipeline::describe_outputs(prepared.job, prepared.plan))
    fmt::print("{}\n", line);
  for (const auto& line : pipeline::phase_table(phases)) fmt::print("{}\n", line);
  return 0;
}

}  // namespace flotilla::app
