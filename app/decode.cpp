// flotilla decode: the clip again from the latents that `run` kept, for example after a decode that
// ran out of memory, or with other tiles.
#include <fmt/format.h>

#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "io/latents_file.h"
#include "pipeline/outputs.h"
#include "pipeline/run_job.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "decode", "flotilla decode LATENTS.h5 [options]",
    "Decodes the latents that \"flotilla run\" wrote to output.latents. The job is the one in the "
    "file;\n"
    "options change its keys, for example --output or --set decoder.tiling=off.",
    "LATENTS.h5"};

// What a decode reads of the job; the rest has done its work. It reads a latents file and writes
// none.
const KeyFilter kKeys = {.only = {"output.", "decoder.", "device", "precision", "threads"},
                         .without = {"output.latents", "output.save_frames"}};

// The job's own permission to overwrite was for its run, and is not one for now.
std::vector<config::Override> overrides_of(const po::variables_map& values) {
  std::vector<config::Override> overrides = {
      {"output.latents", "", "decode", false},
      {"output.save_frames", "false", "decode", false},
      {"output.overwrite", "false", "decode", false},
  };
  const auto given = job_overrides(values, kKeys);
  overrides.insert(overrides.end(), given.begin(), given.end());
  return overrides;
}

}  // namespace

int decode(const Arguments& arguments) {
  const auto values = parse(kUsage, job_options(kKeys), arguments);
  if (!values) return 0;
  const std::string path = positional(kUsage, *values);
  const io::LatentsFile file =
      io::read_latents(path, {io::latents::kStage2Video, io::latents::kStage2Audio});
  const auto loaded =
      config::load_job_text(file.job_yaml, path + ": job_yaml", ".", overrides_of(*values), path);
  const pipeline::PreparedJob prepared = pipeline::prepare_job(loaded, host());
  const pipeline::Phases phases = pipeline::decode_job(prepared, file, host());
  for (const auto& line : pipeline::describe_outputs(prepared.job, prepared.plan))
    fmt::print("{}\n", line);
  for (const auto& line : pipeline::phase_table(phases)) fmt::print("{}\n", line);
  return 0;
}

}  // namespace flotilla::app
