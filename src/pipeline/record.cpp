#include "pipeline/record.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>

#include "base/hash.h"
#include "comm/libraries.h"
#include "config/job_hash.h"
#include "config/writer.h"
#include "gpu/device.h"
#include "io/clock.h"
#include "io/hdf5_file.h"
#include "io/metrics.h"
#include "pipeline/rank_devices.h"
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
                 {"spans", Json::array()},
                 {"memory", Json::object()},
                 {"start_time_s", phases.start_time_s()},
                 {"steps", phases.steps()},
                 {"bytes_read", prepared.files->bytes_read()},
                 {"peak_host_bytes", most.host_bytes.value_or(0)},
                 {"peak_device_bytes", most.device_bytes},
                 {"exchange_bytes", phases.exchange_bytes()},
                 {"exchange_s", phases.exchange_s()}};
  for (const auto& [name, seconds] : phases.seconds()) report["phases"][name] = seconds;
  for (const auto& span : phases.spans())
    report["spans"].push_back({span.phase, span.start_s, span.end_s});
  for (const auto& [name, memory] : phases.memory()) {
    report["memory"][name] = {{"host_bytes", memory.host_bytes ? Json(*memory.host_bytes) : Json()},
                              {"device_bytes", memory.device_bytes}};
  }
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

// "_build": what the program was built with; without: what it has loaded.
Json versions_of(const ModelFiles& files) {
  const std::string nccl = comm::nccl_library();
  return {{"flotilla", kVersion},
          {"commit", kCommit},
          {"build_type", kBuildType},
          {"compiler", kCompiler},
          {"torch", kTorchVersion},
          {"cuda_build", kCudaBuild},
          {"mpi_build", kMpiVersion},
          {"mpi", comm::mpi_library()},
          {"nccl", nccl.empty() ? Json() : Json(nccl)},
          {"hdf5_build", kHdf5Version},
          {"hdf5", io::hdf5_library()},
          {"model", files.model_version()},
          {"model_digest", files.digest()}};
}

// Every run of a phase on every rank, in seconds since the job began on the driver.
Json timeline_of(const std::vector<Json>& reports) {
  Json timeline = Json::array();
  const double begin = reports.front().at("start_time_s").get<double>();
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const double shift = reports[rank].at("start_time_s").get<double>() - begin;
    for (const auto& span : reports[rank].at("spans")) {
      timeline.push_back({{"rank", rank},
                          {"phase", span.at(0)},
                          {"start_s", std::max(0.0, span.at(1).get<double>() + shift)},
                          {"end_s", std::max(0.0, span.at(2).get<double>() + shift)}});
    }
  }
  return timeline;
}

// Of each phase a list over the ranks; null for a rank without the phase, or without the figure.
Json memory_by_phase(const Phases& phases, const std::vector<Json>& reports, bool has_device) {
  Json json = Json::object();
  for (const auto& [name, seconds] : phases.seconds()) {
    Json host = Json::array(), device = Json::array();
    for (const auto& report : reports) {
      const auto& memory = report.at("memory");
      const bool has = memory.contains(name);
      host.push_back(has ? memory.at(name).at("host_bytes") : Json());
      device.push_back(has && has_device ? memory.at(name).at("device_bytes") : Json());
    }
    json[name] = {{"host_bytes", std::move(host)}, {"device_bytes", std::move(device)}};
  }
  return json;
}

// The numbers themselves, so that runs can be compared without their latents.
Json digest_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kCPU, at::kFloat).contiguous();
  const std::string_view bytes(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  return {{"checksum", hash_text(add_to_hash(kHashStart, bytes))},
          {"max_abs", values.abs().max().item<double>()}};
}

Json latents_of(const RunState& state) {
  namespace names = io::latents;
  Json json;
  for (const auto& [stage, video, audio] :
       {std::tuple("stage_1", names::kStage1Video, names::kStage1Audio),
        std::tuple("stage_2", names::kStage2Video, names::kStage2Audio)}) {
    json[stage] = {{"video", digest_of(state.results.at(video))},
                   {"audio", digest_of(state.results.at(audio))}};
  }
  return json;
}

// The device of each rank, with where the rank is.
Json devices_of(const PreparedJob& prepared, const std::vector<Json>& reports, const Host& host,
                const Ranks& ranks) {
  Json devices = Json::array();
  const auto facts = facts_of(ranks, host.variable);
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    Json device = reports[rank].at("device");
    device["pid"] = facts.at(rank).pid;
    device["cores"] = facts.at(rank).cores;
    const auto& gpus = prepared.plan.gpus;
    device["gpu"] = gpus.empty() ? Json() : Json(gpus.at(rank));
    device["uuid"] = gpus.empty()
                         ? Json()
                         : Json(facts.at(rank).gpus.at(static_cast<size_t>(gpus.at(rank))).uuid);
    devices.push_back(std::move(device));
  }
  return devices;
}

std::string_view name_of(StageParallel method) {
  switch (method) {
    case StageParallel::none:
      return "none";
    case StageParallel::sequence:
      return "sp";
    case StageParallel::tiles:
      return "tdp";
  }
  return "";
}

// [frames, rows, columns]; null where the stage is not tiled.
Json tiles_of(const StagePlan& stage) {
  if (!stage.tiles) return nullptr;
  const auto& [frames, rows, columns] = stage.tiles->counts;
  return Json::array({frames, rows, columns});
}

Json passes_of(const GuidancePlan& guidance) {
  Json names = Json::array();
  for (const auto pass : guidance.passes) names.push_back(to_string(pass));
  return names;
}

Json plan_of(const PreparedJob& prepared) {
  const Plan& plan = prepared.plan;
  Json json = {{"pipeline", config::to_string(prepared.job.pipeline)},
               {"world_size", plan.world_size},
               {"num_frames", plan.format.num_frames},
               {"frame_rate", prepared.job.video.frame_rate.to_string()},
               {"precision", plan.precision},
               {"weight_bytes", plan.weight_bytes},
               {"audio_tokens", plan.audio.num_tokens()}};
  for (const StagePlan* stage : {&plan.stage_1, &plan.stage_2}) {
    json[stage->name] = {{"width", stage->pixels.width},
                         {"height", stage->pixels.height},
                         {"video_tokens", stage->grid.size.num_tokens()},
                         {"steps", stage->num_steps()},
                         {"sigmas", stage->sigmas},
                         {"parallel", name_of(stage->method)},
                         {"guidance_groups", stage->groups},
                         {"tiles", tiles_of(*stage)},
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

std::string versions_line() {
  std::string line =
      fmt::format("flotilla {}, {}, {}; LibTorch {}; CUDA build {}", program_version(), kBuildType,
                  kCompiler, kTorchVersion, kCudaBuild);
  if (const auto nccl = comm::nccl_library(); !nccl.empty()) line += "; NCCL " + nccl;
  return line + fmt::format("; MPI {} built, {} loaded; HDF5 {} built, {} loaded", kMpiVersion,
                            comm::mpi_library(), kHdf5Version, io::hdf5_library());
}

std::string program_version() { return fmt::format("{} ({})", kVersion, kCommit); }

void write_metrics(const PreparedJob& prepared, const Phases& phases, const Host& host,
                   const Ranks& ranks, const RunRecord& run) {
  const auto& [job, ffmpeg, files, plan, residents, original_prompt] = prepared;
  if (job.output.metrics.empty()) return;
  const std::vector<Json> reports = gather_reports(prepared, phases, ranks);
  if (!ranks.is_driver()) return;
  io::Metrics metrics;
  metrics.set_block("versions", versions_of(*files));
  metrics.set_block("start", io::time_text(phases.start_time_s()));
  metrics.set_block("end", io::time_text(io::wall_clock_s()));
  metrics.set_block("slurm", io::capture_slurm(host.variable));
  metrics.set_block("devices", devices_of(prepared, reports, host, ranks));
  metrics.set_block("timeline", timeline_of(reports));
  metrics.set_block("phases_memory", memory_by_phase(phases, reports, plan.device.is_cuda()));
  metrics.set_block("checkpoint",
                    {{"writes", run.checkpoints.count}, {"seconds", run.checkpoints.seconds}});
  if (run.state != nullptr) metrics.set_block("latents", latents_of(*run.state));
  metrics.set_block("plan", plan_of(prepared));
  metrics.set_block("environment", io::capture_environment(host.variable));
  const Json original = original_prompt ? Json(*original_prompt) : Json();
  metrics.set_block("job", {{"yaml", config::to_yaml(job)},
                            {"hash", config::job_hash(job)},
                            {"seed", *job.seed},
                            {"original_prompt", original}});
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
