// The stages that pipelines are made of: text, conditioning images, denoising, upsampling. Each
// takes the model that it needs from those that the process keeps, or loads it, and reports its
// phases.
// Next: text_stage.cpp, and decode.h, where the clip becomes frames and sound.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/job.h"
#include "diffusion/conditioning.h"
#include "diffusion/denoise_loop.h"
#include "diffusion/noise.h"
#include "pipeline/model_files.h"
#include "pipeline/pass_runner.h"
#include "pipeline/phases.h"
#include "pipeline/plan.h"
#include "pipeline/ranks.h"
#include "pipeline/residents.h"
#include "pipeline/run_state.h"
#include "pipeline/safe_points.h"
#include "text/prompt_encoder.h"
#include "transformer/transformer.h"
#include "upsampler/latent_upsampler.h"
#include "vae/statistics.h"

namespace flotilla::pipeline {

struct Previews;  // preview.h

// What every stage works with.
struct Session {
  const config::Job& job;
  const ModelFiles& files;
  const Plan& plan;
  Phases& phases;
  std::filesystem::path ffmpeg;  // empty: there is none
  Ranks ranks = {};
  // Called after each denoise step of every stage with the state to go on from; may be empty.
  std::function<void(const diffusion::DenoiseState&)> after_step = {};
  SafePoints* safe_points = nullptr;  // null: the run cannot stop early
  Previews* previews = nullptr;       // null: nobody has asked for any
  // Models go with the stage that needs them, unless the process keeps some.
  std::shared_ptr<Residents> residents = std::make_shared<Residents>(Residents::Span::job);

  // A place outside of denoise stages where the run may stop. Collective.
  void safe_point() const {
    if (safe_points != nullptr) safe_points->between();
  }
  // Before `phase` (of the forecast): see Residents. Collective.
  void make_room(std::string_view phase) const { residents->make_room(phase, plan.device, ranks); }
  // By what kept models are known: the file's version here, and how it was loaded.
  std::string key_of(const loader::Checkpoint& file) const;
};

// What a pipeline leaves to the decoders.
struct ClipLatents {
  at::Tensor video;  // [1, C, F, H, W] at full resolution
  at::Tensor audio;  // [1, C, T, mel]: what is decoded
};

// The job's one generator: see noise.h for the order of its draws.
diffusion::NoiseGenerator make_noise(const Session& session, uint64_t seed);

struct NamedPrompt {
  std::string key;  // of the job, for messages: "negative_prompt"
  std::string text;
};
// On every rank. Loads this rank's part of Gemma and the connectors and encodes the prompts;
// nothing is loaded for prompts that are kept. Warns of a prompt that was cut.
// Collective; errors before the work are agreed. Errors (ErrorKind::config): text.strict_length and
// a prompt that was cut.
std::vector<text::TextContext> encode_prompts(const Session& session,
                                              const std::vector<NamedPrompt>& prompts);

// The prompt that the text model makes of the job's (text.enhance), on every rank; the job's own
// when nothing usable came, with a warning. The driver generates. Collective; errors are agreed.
std::string enhance_prompt(const Session& session);

// The job's images as conditioning of each stage, encoded at the stage's size; empty without
// images.
using StageItems = std::vector<diffusion::ConditioningItem>;
std::vector<StageItems> encode_images(const Session& session,
                                      const std::vector<const StagePlan*>& stages);

// The transformer and what swaps its LoRAs.
struct LoadedTransformer {
  transformer::Transformer model;
  parallel::SharedWeights weights;
};
// The one that is kept, or loaded. With the LoRAs of the whole run fused in; logs a line for each
// of them. The factors of stage 2's are read and checked too, so that nothing can be wrong with
// them hours later. Collective; errors are agreed, and leave no half-changed model in the process.
std::shared_ptr<LoadedTransformer> load_transformer(const Session& session);
// The same weights, in place, with the LoRAs of stage 2. Collective; errors are agreed.
void fuse_stage_2_loras(const Session& session,
                        const std::shared_ptr<LoadedTransformer>& transformer);

struct DenoiseRequest {
  const StagePlan& stage;
  const transformer::Transformer& model;
  const PromptContexts& contexts;  // the negative one where the stage's guidance needs it
  const StageItems& items;
  diffusion::NoiseGenerator& noise;
  at::Tensor initial_video;  // latents that the stage starts from; undefined: noise alone
  at::Tensor initial_audio;
  // Called with the noised tokens before the first step; not when the stage goes on from `state`.
  std::function<void(const diffusion::AvLatents&)> on_start = {};
};
// Latents of the whole clip, [1, C, F, H, W] and [1, C, T, mel].
struct StageLatents {
  at::Tensor video;
  at::Tensor audio;
};
// Under the guidance of the stage's plan. Keeps state.loop up to date while it runs, and goes on
// from it when there is one; leaves the generator behind its draws, in request.noise and `state`.
StageLatents denoise(const Session& session, const DenoiseRequest& request, RunState& state);

// Stage 1's video latent at twice the size.
at::Tensor upsample(const Session& session, const at::Tensor& video_latent);

}  // namespace flotilla::pipeline
