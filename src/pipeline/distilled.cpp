#include "pipeline/distilled.h"

#include <ATen/ATen.h>

#include "diffusion/noise.h"

namespace flotilla::pipeline {
namespace {

void keep(io::LatentsFile* record, const char* name, const at::Tensor& tensor) {
  if (record != nullptr) record->tensors[name] = tensor.to(at::kCPU, at::kFloat);
}

}  // namespace

ClipLatents run_distilled(const Session& session, uint64_t seed, io::LatentsFile* record) {
  namespace names = io::latents;
  const Plan& plan = session.plan;
  const auto noise_device =
      session.job.noise_device == config::NoiseDevice::cuda ? plan.device : at::Device(at::kCPU);
  diffusion::NoiseGenerator noise(seed, noise_device);

  const text::PromptEmbedding prompt = encode_prompt(session, session.job.prompt);
  keep(record, names::kVideoContext, prompt.video_context);
  keep(record, names::kAudioContext, prompt.audio_context);
  const auto items = encode_images(session, {&plan.stage_1, &plan.stage_2});

  const transformer::Transformer model = load_transformer(session);
  const StageLatents first =
      denoise(session, {.stage = plan.stage_1,
                        .model = model,
                        .prompt = prompt,
                        .items = items[0],
                        .noise = noise,
                        .on_start = [&](const diffusion::AvLatents& start) {
                          keep(record, names::kInitialVideo, start.video.latent);
                          keep(record, names::kInitialAudio, start.audio.latent);
                        }});
  keep(record, names::kStage1Video, first.video);
  keep(record, names::kStage1Audio, first.audio);

  const at::Tensor upscaled = upsample(session, first.video);
  keep(record, names::kUpscaledVideo, upscaled);

  const StageLatents second = denoise(session, {.stage = plan.stage_2,
                                                .model = model,
                                                .prompt = prompt,
                                                .items = items[1],
                                                .noise = noise,
                                                .initial_video = upscaled,
                                                .initial_audio = first.audio});
  keep(record, names::kStage2Video, second.video);
  keep(record, names::kStage2Audio, second.audio);
  return {second.video, second.audio};
}

}  // namespace flotilla::pipeline
