// flotilla decode: the clip again from the latents that `run` kept, for example after a decode that
// ran out of memory, or with other tiles.
#include <fmt/format.h>

#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "comm/rank_context.h"
#include "io/latents_file.h"
#include "pipeline/outputs.h"
#include "pipeline/run_job.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "decode", "flotilla decode LATENTS.h5 [options]",
    "Decodes the latents that \"flotilla run\" wrote to output.latents. The job is the one in the "
    "file;\n"
    "options change its keys, for example --output or --set decoder.tiling=off.\n"
    "Under mpirun the ranks decode in tiles together.",
    "LATENTS.h5", /*many_ranks=*/true};

// What a decode reads of the job; the rest has done its work. It reads a latents file and writes
// none.
const KeyFilter kKeys = {.only = {"output.", "decoder.", "device", "precision", "threads"},
                         .without = {"output.latents", "output.save_frames"}};

// The job's own permission to overwrite was for its run, and is not one for now; nor is there
// anything to stop and resume.
std::vector<config::Override> overrides_of(const po::variables_map& values) {
  std::vector<config::Override> overrides = {
      {"output.latents", "", "decode", false},
      {"output.save_frames", "false", "decode", false},
      {"output.overwrite", "false", "decode", false},
      {"checkpoint.path", "", "decode", false},
      {"checkpoint.every_steps", "0", "decode", false},
      {"checkpoint.resume", "never", "decode", false},
      {"limits.max_hours", "", "decode", false},
      {"limits.stop_file", "", "decode", false},
  };
  const auto given = job_overrides(values, kKeys);
  overrides.insert(overrides.end(), given.begin(), given.end());
  return overrides;
}

// Denoising is done: what it would ask of the ranks does not matter, however many there are now.
void forget_denoising(config::Job& job, int world_size) {
  job.stage_1.guidance_groups.reset();
  if (world_size == 1) return;
  job.stage_1.parallel = config::Stage1Parallel::none;
  job.stage_2.parallel = config::Stage2Parallel::none;
}

// Each rank reads the file for itself.
int decode_file(const std::string& path, const po::variables_map& values,
                const pipeline::Ranks& ranks) {
  const io::LatentsFile file = ranks.agreed([&] {
    return io::read_latents(path, {io::latents::kStage2Video, io::latents::kStage2Audio});
  });
  const auto outputs = ranks.is_driver() ? pipeline::Outputs::checked : pipeline::Outputs::ignored;
  const pipeline::PreparedJob prepared = ranks.agreed([&] {
    auto loaded =
        config::load_job_text(file.job_yaml, path + ": job_yaml", ".", overrides_of(values), path);
    forget_denoising(loaded.job, ranks.world_size());
    return pipeline::prepare_job(loaded, host(), outputs, ranks);
  });
  const pipeline::Phases phases = pipeline::decode_job(prepared, file, host(), ranks);
  if (!ranks.is_driver()) return 0;
  for (const auto& line : pipeline::describe_outputs(prepared.job, prepared.plan))
    fmt::print("{}\n", line);
  for (const auto& line : pipeline::phase_table(phases)) fmt::print("{}\n", line);
  return 0;
}

}  // namespace

int decode(const Arguments& arguments) {
  const auto values = parse(kUsage, job_options(kKeys), arguments);
  if (!values) return 0;
  const std::string path = positional(kUsage, *values);
  if (launched_ranks().world_size == 1) return decode_file(path, *values, {});
  return comm::run_on_ranks({.environment = host().variable}, [&](comm::RankContext& context) {
    return decode_file(path, *values, {&context});
  });
}

}  // namespace flotilla::app
