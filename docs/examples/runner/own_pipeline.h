// A pipeline of one's own: text encoder, diffusion model and decoder of one device, each wrapped
// for all ranks (parallel/wrap.h), and a denoise loop around them. For jobs without images.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "diffusion/denoise_loop.h"
#include "diffusion/patchify.h"
#include "parallel/replicated.h"
#include "parallel/wrap.h"
#include "pipeline/run_job.h"
#include "upsampler/latent_upsampler.h"
#include "vae/statistics.h"

using namespace flotilla;  // of a program, not of a library

struct Clip {
  at::Tensor video;  // [1, C, F, H, W]
  at::Tensor audio;  // [1, C, T, mel]
};

class OwnPipeline {
 public:
  OwnPipeline(const pipeline::PreparedJob& prepared, comm::RankContext& ranks)
      : job_(prepared.job), files_(*prepared.files), plan_(prepared.plan), ranks_(ranks) {
    if (!job_.images.empty()) fail(ErrorKind::config, "images: this program does without them");
  }

  // Called after each step on each rank.
  using OnStep = std::function<void(const std::string& stage, int64_t step, int64_t steps)>;

  Clip make_latents(const std::string& prompt, uint64_t seed, const OnStep& on_step) {
    on_step_ = &on_step;
    encode_text(prompt);
    diffusion::NoiseGenerator noise(seed, at::kCPU);
    const Clip first = denoise(plan_.stage_1, files_.loras(), noise);
    const Clip second =
        denoise(plan_.stage_2, files_.stage_2_loras(), noise, {upsample(first.video), first.audio});
    // The sound of a guided job is the one of its guided stage.
    const bool is_guided = job_.pipeline == config::Pipeline::ti2vid_two_stages;
    return {second.video, is_guided ? first.audio : second.audio};
  }

  // The weights stay for the next job; what the ranks share goes.
  void close() {
    if (model_) model_->end();
  }

  // Number of frames; 0 on ranks other than the driver.
  int64_t decode(const at::Tensor& video) const {
    parallel::ClipDecoder decoder = parallel::distributed(
        parallel::ClipDecoder({files_.video_vae(), plan_.dtype, plan_.device}), ranks_);
    decoder.load();
    int64_t num_frames = 0;
    decoder.decode(video, [&](const at::Tensor& frames) { num_frames += frames.size(0); });
    return num_frames;
  }

 private:
  void encode_text(const std::string& prompt) {
    std::vector<std::string> prompts = {prompt};
    if (plan_.stage_1.guidance.needs_negative_prompt()) prompts.push_back(job_.negative_prompt);
    parallel::TextEncoder encoder =
        parallel::distributed(parallel::TextEncoder({files_.transformer(), files_.text_encoder(),
                                                     plan_.dtype, plan_.device}),
                              ranks_, job_.text.parallel);
    encoder.load(static_cast<int64_t>(prompts.size()));
    const auto contexts = encoder.encode(prompts);
    contexts_ = {contexts.front(), contexts.back()};
  }

  // The model of the stage before, where this one is spread in the same way; else another one of
  // the same weights.
  parallel::DiffusionModel& model_for(const pipeline::StagePlan& stage,
                                      const std::vector<loader::LoraWithStrength>& loras) {
    if (model_ && stage.method == method_) {
      model_->set_loras(loras);
      return *model_;
    }
    if (model_) model_->end();
    parallel::DiffusionModel single =
        model_ ? model_->with_same_weights()
               : parallel::DiffusionModel({files_.transformer(), plan_.dtype, plan_.device, loras});
    method_ = stage.method;
    if (method_ == pipeline::StageParallel::sequence) {
      model_.emplace(sequence_parallel(std::move(single), ranks_, sequence_sizes()));
    } else if (method_ == pipeline::StageParallel::tiles) {
      model_.emplace(tiled(std::move(single), ranks_, *stage.tiles));
    } else {
      model_.emplace(std::move(single));
    }
    model_->load();
    model_->set_loras(loras);
    return *model_;
  }

  parallel::SequenceSizes sequence_sizes() const {
    return {.max_tokens = job_.sp.max_tokens,
            .max_batch = static_cast<int64_t>(plan_.stage_1.guidance.passes.size()),
            .audio_tokens = plan_.audio.num_tokens(),
            .timeout_s = *job_.sp.exchange_timeout_seconds};
  }

  Clip denoise(const pipeline::StagePlan& stage, const std::vector<loader::LoraWithStrength>& loras,
               diffusion::NoiseGenerator& noise, const Clip& start = {}) {
    const auto options = at::TensorOptions(plan_.device).dtype(plan_.dtype);
    diffusion::AvLatents latents = diffusion::add_noise(
        {diffusion::make_video_state(stage.grid, options, start.video),
         diffusion::make_audio_state(plan_.audio, options, start.audio, plan_.audio_timing)},
        noise, start.video.defined() ? stage.sigmas.front() : 1.0);
    parallel::DiffusionModel& model = model_for(stage, loras);
    const auto& velocities = model.begin({latents.video.positions, latents.audio.positions});
    pipeline::TransformerPassRunner passes(velocities, contexts_, stage.guidance.order);
    diffusion::GuidedDenoiser denoiser(passes, diffusion::GuiderSchedule(stage.guidance.video),
                                       diffusion::GuiderSchedule(stage.guidance.audio));
    diffusion::EulerSampler sampler;
    const diffusion::DenoiseStage loop{stage.name, stage.sigmas, std::move(latents), denoiser,
                                       sampler};
    diffusion::DenoiseState state = diffusion::start_stage(loop, noise);
    diffusion::run_denoise_loop(loop, state, [&](auto& now, int64_t step, int64_t steps) {
      if (plan_.device.is_cuda()) parallel::take_drivers_audio(now, ranks_.transformer());
      (*on_step_)(stage.name, step, steps);
      return diffusion::SafePoint::go_on;
    });
    const diffusion::AvLatents end = diffusion::latents_at(loop, state);
    return {diffusion::unpatchify_video(diffusion::target_tokens(end.video), stage.grid.size),
            diffusion::unpatchify_audio(diffusion::target_tokens(end.audio), plan_.audio)};
  }

  at::Tensor upsample(const at::Tensor& video) const {
    const auto statistics = vae::load_statistics(files_.video_vae(), plan_.dtype, plan_.device);
    const auto model =
        upsampler::LatentUpsampler::from_checkpoint(files_.upsampler(), plan_.dtype, plan_.device);
    return upsampler::upsample_video(model, video, statistics.mean, statistics.std);
  }

  const config::Job& job_;
  const pipeline::ModelFiles& files_;
  const pipeline::Plan& plan_;
  comm::RankContext& ranks_;
  const OnStep* on_step_ = nullptr;
  pipeline::PromptContexts contexts_;
  std::optional<parallel::DiffusionModel> model_;
  pipeline::StageParallel method_ = pipeline::StageParallel::none;
};
