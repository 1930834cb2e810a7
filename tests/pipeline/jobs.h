// Jobs on the tiny and the demo models, and sessions to run them in pieces.
#pragma once

#include <ATen/ATen.h>

#include <cstdlib>
#include <memory>

#include "config/load.h"
#include "config/validate.h"
#include "gpu/device.h"
#include "io/frame_sink.h"
#include "pipeline/decode.h"
#include "pipeline/distilled.h"
#include "pipeline/model_defaults.h"
#include "pipeline/run_job.h"
#include "pipeline/two_stages.h"
#include "support/golden.h"

namespace flotilla::test {

inline pipeline::Host host() {
  const char* path = std::getenv("PATH");
  return {path == nullptr ? "" : path, [](const char* name) { return std::getenv(name); }};
}

// A distilled job on the tiny 2.3 checkpoint, in fp32 on the CPU.
inline config::Job tiny_job() {
  config::Job job;
  job.models.checkpoint = tiny_dir() / "ltx23-dev.safetensors";
  job.models.spatial_upsampler = tiny_dir() / "ltx23-spatial-upscaler-x2.safetensors";
  job.models.text_encoder = tiny_dir() / "gemma";
  job.device = config::Device::cpu;
  job.precision = config::Precision::fp32;
  job.seed = 1;
  return job;
}

// The same checkpoint under guidance, with its distilled LoRA.
inline config::Job tiny_two_stage_job() {
  config::Job job = tiny_job();
  job.pipeline = config::Pipeline::ti2vid_two_stages;
  job.models.distilled_lora.path = tiny_dir() / "ltx23-distilled-lora.safetensors";
  return job;
}

inline config::Job demo_job(const std::string& prompt, uint64_t seed) {
  const auto models = source_dir() / "models/demo";
  config::Job job;
  job.models.checkpoint = models / "ltx-demo-dev.safetensors";
  job.models.spatial_upsampler = models / "ltx-demo-spatial-upscaler-x2.safetensors";
  job.models.text_encoder = models / "gemma";
  job.device = config::Device::cpu;
  job.precision = config::Precision::fp32;
  job.prompt = prompt;
  job.seed = seed;
  job.video = {.width = 384, .height = 256, .num_frames = 25, .frame_rate = {24}};
  return job;
}

// A job with what its stages need, on this rank alone or on several.
struct PieceRunner {
  explicit PieceRunner(const config::Job& given, pipeline::Ranks with = {})
      : ranks(with),
        files(given.models),
        job(pipeline::with_model_defaults(given, files.model_version())),
        plan(pipeline::make_plan(job, files, ranks.world_size())),
        phases(plan.device) {
    gpu::disable_tf32();
  }

  pipeline::Session session() { return {job, files, plan, phases, {}, ranks}; }
  // uint8 [F, H, W, 3] of a latent; undefined on ranks that are not the driver.
  at::Tensor decode(const at::Tensor& latent) {
    io::FrameCollector collector(plan.format);
    pipeline::decode_video(session(), latent, ranks.is_driver() ? &collector : nullptr);
    return ranks.is_driver() ? collector.frames().clone() : at::Tensor();
  }

  pipeline::Ranks ranks;
  pipeline::ModelFiles files;
  config::Job job;
  pipeline::Plan plan;
  pipeline::Phases phases;
};

}  // namespace flotilla::test
