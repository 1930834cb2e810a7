#include "pipeline/plan.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "audio/audio_format.h"
#include "base/error.h"
#include "gpu/device.h"
#include "transformer/config.h"
#include "vae/config.h"

namespace flotilla::pipeline {
namespace {

// Share of the machine's memory that `auto` tiling may fill with the activations of a decode.
constexpr int64_t kDecodeMemoryShare = 4;

at::ScalarType dtype_of(config::Precision precision) {
  return precision == config::Precision::fp32 ? at::kFloat : at::kBFloat16;
}

diffusion::Sigmas given_sigmas(const config::Sigmas& given) {
  diffusion::Sigmas sigmas(given.begin(), given.end());
  diffusion::check_sigmas(sigmas);
  return sigmas;
}

StagePlan plan_stage(const std::string& name, const config::Video& video, int64_t shrink,
                     const vae::DecoderConfig& decoder, diffusion::Sigmas sigmas) {
  StagePlan stage;
  stage.name = name;
  stage.pixels = {video.num_frames, video.height / shrink, video.width / shrink,
                  video.frame_rate.to_double()};
  stage.grid.scale = decoder.scale();
  stage.grid.size =
      diffusion::video_latent_size(stage.pixels, decoder.latent_channels, decoder.scale());
  stage.grid.frame_rate = stage.pixels.frame_rate;
  stage.sigmas = std::move(sigmas);
  return stage;
}

diffusion::VideoTiling tiling_of(const config::Job& job, const vae::DecoderConfig& decoder,
                                 const Plan& plan) {
  using config::TilingMode;
  if (job.decoder.tiling.mode == TilingMode::off) return {};
  if (job.decoder.tiling.mode == TilingMode::automatic) {
    return vae::automatic_tiling(decoder, plan.stage_2.grid.size,
                                 static_cast<int64_t>(c10::elementSize(plan.dtype)),
                                 gpu::total_memory_bytes(plan.device) / kDecodeMemoryShare);
  }
  diffusion::VideoTiling tiling;
  const auto axis = [](const config::AxisTiling& given) {
    return given.size ? diffusion::AxisTiling::of_size(*given.size, given.overlap)
                      : diffusion::AxisTiling{};
  };
  tiling.frames = axis(job.decoder.tiling.temporal);
  tiling.height = axis(job.decoder.tiling.spatial);
  tiling.width = axis(job.decoder.tiling.spatial);
  return tiling;
}

diffusion::Sigmas stage_1_schedule(const config::Job& job) {
  if (job.pipeline == config::Pipeline::distilled) return diffusion::distilled_sigmas();
  FLOTILLA_ASSERT(job.stage_1.steps.has_value());
  return diffusion::ltx2_sigmas(*job.stage_1.steps);
}

// Positions beyond the table's range were never trained: the clip degrades, so it is said.
void warn_about_positions(const config::Video& video, const transformer::TransformerConfig& model,
                          Plan& plan) {
  const auto& max_pos = model.video.max_pos;  // seconds, pixels, pixels
  const double duration = static_cast<double>(video.num_frames) / video.frame_rate.to_double();
  const auto check = [&plan](const char* key, double value, int64_t limit, const char* unit) {
    if (value <= static_cast<double>(limit)) return;
    plan.warnings.push_back(
        fmt::format("{} makes {:g} {}, beyond the {} {} that the model's position table covers; "
                    "expect degraded output",
                    key, value, unit, limit, unit));
  };
  check("video.num_frames", duration, max_pos[0], "seconds");
  check("video.height", static_cast<double>(video.height), max_pos[1], "pixels");
  check("video.width", static_cast<double>(video.width), max_pos[2], "pixels");
}

}  // namespace

Plan make_plan(const config::Job& job, const ModelFiles& files) {
  Plan plan;
  plan.device =
      job.device == config::Device::cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  plan.dtype = dtype_of(job.precision);
  const auto decoder = vae::DecoderConfig::from_json(vae::locate_vae(*files.video_vae()).config);
  plan.stage_1 =
      plan_stage("stage_1", job.video, 2, decoder,
                 job.stage_1.sigmas ? given_sigmas(*job.stage_1.sigmas) : stage_1_schedule(job));
  plan.stage_2 = plan_stage("stage_2", job.video, 1, decoder,
                            job.stage_2.sigmas ? given_sigmas(*job.stage_2.sigmas)
                                               : diffusion::distilled_stage_2_sigmas());
  const loader::ConfigReader reader(files.audio_vae()->config(),
                                    files.audio_vae()->path().string() + ": config");
  const auto audio = audio::AudioFormat::from_json(reader.object("audio_vae"));
  plan.audio_timing = audio.timing();
  plan.audio = diffusion::audio_latent_size(plan.stage_2.pixels, audio.latent_channels,
                                            audio.latent_bins(), plan.audio_timing);
  plan.decode_tiles =
      vae::plan_tiles(tiling_of(job, decoder, plan), plan.stage_2.grid.size, decoder.scale());
  plan.format = {job.video.width,
                 job.video.height,
                 job.video.num_frames,
                 {job.video.frame_rate.numerator(), job.video.frame_rate.denominator()}};
  const auto model = transformer::TransformerConfig::from_checkpoint(*files.transformer());
  warn_about_positions(job.video, model, plan);
  if (job.pipeline == config::Pipeline::ti2vid_two_stages) {
    GuidancePlan& guidance = plan.stage_1.guidance;
    guidance = plan_guidance(job, plan.stage_1.grid.size.num_tokens() + plan.audio.num_tokens());
    for (auto& warning : guidance_warnings(job, guidance, model.num_layers))
      plan.warnings.push_back(std::move(warning));
  }
  return plan;
}

std::vector<std::string> Plan::describe() const {
  std::vector<std::string> lines;
  for (const StagePlan* stage : {&stage_1, &stage_2}) {
    lines.push_back(
        fmt::format("{}: {} x {}, {} frames, {} video tokens, {} audio tokens, {} steps, {}",
                    stage->name, stage->pixels.width, stage->pixels.height, stage->pixels.frames,
                    stage->grid.size.num_tokens(), audio.num_tokens(), stage->num_steps(),
                    stage->guidance.describe()));
  }
  lines.push_back("decode: " + decode_tiles.describe());
  return lines;
}

}  // namespace flotilla::pipeline
