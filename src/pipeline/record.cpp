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

// What a rank tells the driver of its run.
Json report_of(const PreparedJob& prepared, const Phases& phases, int rank) {
  const PeakMemory most = phases.peak_memory();
  Json report = {{"device",
                  {{"rank", rank},
                   {"device", gpu::device_name(prepared.plan.device)},
                   {"threads", at::get_num_threads()}}},
                 {"phases", Json::object()},
                 {"steps", phases.steps()},
                 {"bytes_read", prepared.files->bytes_read() + phases.bytes_read()},
                 {"peak_host_bytes", most.host_bytes.value_or(0)},
                 {"peak_device_bytes", most.device_bytes},
                 {"exchange_bytes", phases.exchange_bytes()},
                 {"exchange_s", phases.exchange_s()}};
  for (const auto& [name, seconds] : phases.seconds()) report["phases"][name] = seconds;
  return report;
}

// Of all ranks, in their order; on the driver and on the others alike. Collective.
std::vector<Json> gather_reports(const PreparedJob& prepared, const Phases& phases,
                                 const Ranks& ranks) {
  const Json own = report_of(prepared, phases, ranks.rank());
  if (ranks.context == nullptr) return {own};
  std::vector<Json> reports;
  for (const auto& text : ranks.context->world().all_gather(own.dump()))
    reports.push_back(Json::parse(text));
  return reports;
}

// Over the ranks that have the entry: not all of them decode.
io::RankSpread spread_of(const std::vector<Json>& reports, const Json::json_pointer& entry) {
  std::vector<double> values;
  for (const auto& report : reports) {
    if (report.contains(entry)) values.push_back(report.at(entry).get<double>());
  }
  return io::spread_over_ranks(std::move(values));
}

int64_t sum_of(const std::vector<Json>& reports, const char* entry) {
  int64_t sum = 0;
  for (const auto& report : reports) sum += report.at(entry).get<int64_t>();
  return sum;
}

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
  Json json = {{"world_size", plan.world_size},
               {"precision", plan.precision},
               {"weight_bytes", plan.weight_bytes},
               {"audio_tokens", plan.audio.num_tokens()}};
  for (const StagePlan* stage : {&plan.stage_1, &plan.stage_2}) {
    json[stage->name] = {{"width", stage->pixels.width},
                         {"height", stage->pixels.height},
                         {"video_tokens", stage->grid.size.num_tokens()},
                         {"sigmas", stage->sigmas},
                         {"passes", passes_of(stage->guidance)},
                         {"pass_order", to_string(stage->guidance.order)}};
  }
  const auto* attention = prepared.residents->attention();
  json["attention"] = attention != nullptr ? Json(attention->kernel) : Json();
  json["decode_tiles"] = plan.decode.num_tiles();
  json["decode"] = plan.decode.describe(plan.world_size);
  return json;
}

// In the order of their first run; a job may do without images, sound or a latents file.
std::vector<std::string> phases_of(config::Pipeline pipeline) {
  std::vector<std::string> names = {"load_enhancer", "enhance",          "load_text", "text",
                                    "encode_images", "load_transformer", "stage_1",   "upsample"};
  if (pipeline == config::Pipeline::ti2vid_two_stages) names.emplace_back("fuse_loras");
  for (const char* name : {"stage_2", "write_latents", "decode_audio", "decode_video"})
    names.emplace_back(name);
  return names;
}

}  // namespace

std::string program_version() { return fmt::format("{} ({})", kVersion, kCommit); }

void write_metrics(const PreparedJob& prepared, const Phases& phases, const Host& host,
                   const Ranks& ranks) {
  const auto& [job, ffmpeg, files, plan, residents, original_prompt] = prepared;
  if (job.output.metrics.empty()) return;
  const std::vector<Json> reports = gather_reports(prepared, phases, ranks);
  if (!ranks.is_driver()) return;
  io::Metrics metrics;
  metrics.set_block("versions", versions_of(*files));
  Json devices = Json::array();
  for (const auto& report : reports) devices.push_back(report.at("device"));
  metrics.set_block("devices", std::move(devices));
  metrics.set_block("plan", plan_of(prepared));
  metrics.set_block("environment", io::capture_environment(host.variable));
  const Json original = original_prompt ? Json(*original_prompt) : Json();
  metrics.set_block(
      "job", {{"yaml", config::to_yaml(job)}, {"seed", *job.seed}, {"original_prompt", original}});
  metrics.declare_phases(phases_of(job.pipeline));
  for (const auto& [name, seconds] : phases.seconds()) {
    metrics.add_phase(name, spread_of(reports, Json::json_pointer("/phases/" + name)));
  }
  for (const auto& [stage, steps] : phases.steps()) {
    for (size_t i = 0; i < steps.size(); ++i) {
      metrics.add_step(
          stage, spread_of(reports, Json::json_pointer(fmt::format("/steps/{}/{}", stage, i))));
    }
  }
  if (const auto truncated = phases.prompt_truncated()) metrics.set_prompt_truncated(*truncated);
  metrics.set_bytes_read(sum_of(reports, "bytes_read"));
  metrics.set_padding_fraction(plan.padding_fraction());
  const auto device_bytes =
      static_cast<int64_t>(spread_of(reports, Json::json_pointer("/peak_device_bytes")).max);
  metrics.set_peak_bytes(
      static_cast<int64_t>(spread_of(reports, Json::json_pointer("/peak_host_bytes")).max),
      device_bytes > 0 ? std::optional(device_bytes) : std::nullopt);
  metrics.set_exchange(sum_of(reports, "exchange_bytes"),
                       spread_of(reports, Json::json_pointer("/exchange_s")).max);
  metrics.set_total_s(phases.total_s());
  metrics.set_extra("warm", phases.warm());
  metrics.write(job.output.metrics, job.output.overwrite);
}

}  // namespace flotilla::pipeline
