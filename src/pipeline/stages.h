// The stages that pipelines are made of: text, conditioning images, denoising, upsampling,
// decoding. Each loads the model that it needs, reports its phases, and lets go of what is not used
// again.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "audio/vocoder.h"
#include "config/job.h"
#include "diffusion/conditioning.h"
#include "diffusion/denoise_loop.h"
#include "io/frame_sink.h"
#include "pipeline/model_files.h"
#include "pipeline/phases.h"
#include "pipeline/plan.h"
#include "text/prompt_encoder.h"
#include "transformer/transformer.h"
#include "upsampler/latent_upsampler.h"
#include "vae/statistics.h"

namespace flotilla::pipeline {

// What every stage works with.
struct Session {
  const config::Job& job;
  const ModelFiles& files;
  const Plan& plan;
  Phases& phases;
  std::filesystem::path ffmpeg;  // empty: there is none
  // Called after each denoise step of every stage with the state to go on from; may be empty.
  std::function<void(const diffusion::DenoiseState&)> after_step = {};
};

// Loads Gemma and the connectors, encodes, frees them. Warns when the prompt was cut. Errors
// (ErrorKind::config): text.strict_length and a prompt that was cut.
text::PromptEmbedding encode_prompt(const Session& session, const std::string& prompt);

// The job's images as conditioning of each stage, encoded at the stage's size; empty without
// images.
using StageItems = std::vector<diffusion::ConditioningItem>;
std::vector<StageItems> encode_images(const Session& session,
                                      const std::vector<const StagePlan*>& stages);

// The transformer with the LoRAs of the whole run fused in; logs a line for each of them.
transformer::Transformer load_transformer(const Session& session);

struct DenoiseRequest {
  const StagePlan& stage;
  const transformer::Transformer& model;
  const text::PromptEmbedding& prompt;
  const StageItems& items;
  diffusion::NoiseGenerator& noise;
  at::Tensor initial_video;  // latents that the stage starts from; undefined: noise alone
  at::Tensor initial_audio;
  // Called with the noised tokens before the first step.
  std::function<void(const diffusion::AvLatents&)> on_start = {};
};
// Latents of the whole clip, [1, C, F, H, W] and [1, C, T, mel].
struct StageLatents {
  at::Tensor video;
  at::Tensor audio;
};
StageLatents denoise(const Session& session, const DenoiseRequest& request);

// Stage 1's video latent at twice the size.
at::Tensor upsample(const Session& session, const at::Tensor& video_latent);

// Decodes tile by tile into `sink`, in time order; frames are uint8. Errors
// (ErrorKind::non_finite).
void decode_video(const Session& session, const at::Tensor& video_latent, io::FrameSink& sink);
audio::Waveform decode_audio(const Session& session, const at::Tensor& audio_latent);

}  // namespace flotilla::pipeline
