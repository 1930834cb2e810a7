#include "pipeline/record.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "config/writer.h"
#include "gpu/device.h"
#include "io/metrics.h"
#include "version.h"

namespace flotilla::pipeline {
namespace {

using Json = io::Metrics::Json;

io::RankSpread one_rank(double value) { return {value, value, value}; }

Json versions_of(const ModelFiles& files) {
  return {{"flotilla", kVersion},           {"commit", kCommit},
          {"build_type", kBuildType},       {"compiler", kCompiler},
          {"torch", kTorchVersion},         {"cuda_build", kCudaBuild},
          {"model", files.model_version()}, {"model_digest", files.digest()}};
}

Json passes_of(const GuidancePlan& guidance) {
  Json names = Json::array();
  for (const auto pass : guidance.passes) names.push_back(to_string(pass));
  return names;
}

Json plan_of(const PreparedJob& prepared) {
  const Plan& plan = prepared.plan;
  Json json = {{"world_size", 1}, {"audio_tokens", plan.audio.num_tokens()}};
  for (const StagePlan* stage : {&plan.stage_1, &plan.stage_2}) {
    json[stage->name] = {{"width", stage->pixels.width},
                         {"height", stage->pixels.height},
                         {"video_tokens", stage->grid.size.num_tokens()},
                         {"sigmas", stage->sigmas},
                         {"passes", passes_of(stage->guidance)},
                         {"pass_order", to_string(stage->guidance.order)}};
  }
  json["decode_tiles"] = plan.decode_tiles.num_tiles();
  json["decode"] = plan.decode_tiles.describe();
  return json;
}

}  // namespace

std::string program_version() { return fmt::format("{} ({})", kVersion, kCommit); }

void write_metrics(const PreparedJob& prepared, const Phases& phases, const Host& host) {
  const auto& [job, ffmpeg, files, plan] = prepared;
  if (job.output.metrics.empty()) return;
  io::Metrics metrics;
  metrics.set_block("versions", versions_of(*files));
  metrics.set_block("devices", Json::array({{{"rank", 0},
                                             {"device", gpu::device_name(plan.device)},
                                             {"threads", at::get_num_threads()}}}));
  metrics.set_block("plan", plan_of(prepared));
  metrics.set_block("environment", io::capture_environment(host.variable));
  metrics.set_block("job", {{"yaml", config::to_yaml(job)}, {"seed", *job.seed}});
  for (const auto& [name, seconds] : phases.seconds()) metrics.add_phase(name, one_rank(seconds));
  for (const auto& [stage, steps] : phases.steps()) {
    for (const double seconds : steps) metrics.add_step(stage, one_rank(seconds));
  }
  metrics.set_bytes_read(files->bytes_read() + phases.bytes_read());
  metrics.set_padding_fraction(0.0);
  const int64_t device_bytes = gpu::peak_device_bytes(plan.device);
  metrics.set_peak_bytes(io::peak_host_bytes(),
                         device_bytes > 0 ? std::optional(device_bytes) : std::nullopt);
  metrics.set_exchange(0, 0.0);
  metrics.set_total_s(phases.total_s());
  metrics.write(job.output.metrics, job.output.overwrite);
}

}  // namespace flotilla::pipeline
