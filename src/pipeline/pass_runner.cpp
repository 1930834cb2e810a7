#include "pipeline/pass_runner.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "diffusion/stepper.h"

namespace flotilla::pipeline {
namespace {

using diffusion::PassKind;

at::Tensor repeat_batch(const at::Tensor& tensor, int64_t times) {
  if (!tensor.defined() || times == 1) return tensor;
  std::vector<int64_t> repeats(static_cast<size_t>(tensor.dim()), 1);
  repeats[0] = times;
  return tensor.repeat(repeats);
}

transformer::Modality modality_of(const diffusion::LatentState& state, const at::Tensor& timesteps,
                                  double sigma, int64_t passes) {
  transformer::Modality modality;
  modality.latent = repeat_batch(state.latent, passes);
  modality.sigma =
      at::full({modality.latent.size(0)}, sigma, state.latent.options().dtype(at::kFloat));
  modality.timesteps = ops::make_timestep_table(repeat_batch(timesteps, passes));
  modality.attention_mask = repeat_batch(state.attention_mask, passes);
  modality.keyframes_mask = repeat_batch(state.keyframes_mask, passes);
  return modality;
}

transformer::SamplePerturbation perturbation_of(PassKind pass,
                                                const diffusion::PassRequest& request) {
  transformer::SamplePerturbation sample;
  if (pass == PassKind::perturbed) {
    sample.video_self.blocks = request.video_stg_blocks;
    sample.audio_self.blocks = request.audio_stg_blocks;
  }
  if (pass == PassKind::isolated) {
    sample.audio_to_video.all = true;
    sample.video_to_audio.all = true;
  }
  return sample;
}

// Contexts of the passes along the batch.
at::Tensor context_of(std::span<const PassKind> passes, const PromptContexts& contexts,
                      at::Tensor text::TextContext::*stream) {
  std::vector<at::Tensor> parts;
  for (const PassKind pass : passes) {
    const at::Tensor& context =
        pass == PassKind::unconditional ? contexts.negative.*stream : contexts.positive.*stream;
    FLOTILLA_ASSERT(context.defined());
    parts.push_back(context);
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, 0);
}

}  // namespace

TransformerPassRunner::TransformerPassRunner(const transformer::VelocityModel& model,
                                             PromptContexts contexts, PassOrder order)
    : model_(model), contexts_(std::move(contexts)), order_(order) {}

std::vector<diffusion::AvTokens> TransformerPassRunner::run(const diffusion::PassRequest& request,
                                                            const diffusion::AvLatents& latents,
                                                            double sigma) {
  const Timesteps timesteps{diffusion::token_timesteps(latents.video, sigma),
                            diffusion::token_timesteps(latents.audio, sigma)};
  if (order_ == PassOrder::batch)
    return forward(request.passes, request, latents, sigma, timesteps);
  std::vector<diffusion::AvTokens> results;
  for (const PassKind& pass : request.passes) {
    results.push_back(forward({&pass, 1}, request, latents, sigma, timesteps).front());
  }
  return results;
}

std::vector<diffusion::AvTokens> TransformerPassRunner::forward(
    std::span<const PassKind> passes, const diffusion::PassRequest& request,
    const diffusion::AvLatents& latents, double sigma, const Timesteps& timesteps) const {
  const auto count = static_cast<int64_t>(passes.size());
  transformer::Modality video = modality_of(latents.video, timesteps.video, sigma, count);
  transformer::Modality audio = modality_of(latents.audio, timesteps.audio, sigma, count);
  video.enabled = request.video_enabled;
  audio.enabled = request.audio_enabled;
  video.context = context_of(passes, contexts_, &text::TextContext::video);
  audio.context = context_of(passes, contexts_, &text::TextContext::audio);
  transformer::Perturbations perturbations;
  for (const PassKind pass : passes) perturbations.push_back(perturbation_of(pass, request));

  const auto velocity = model_.forward(&video, &audio, perturbations);
  const at::Tensor x0_video = diffusion::to_denoised(video.latent, velocity.video, timesteps.video);
  const at::Tensor x0_audio = diffusion::to_denoised(audio.latent, velocity.audio, timesteps.audio);
  std::vector<diffusion::AvTokens> results;
  for (int64_t i = 0; i < count; ++i)
    results.push_back({x0_video.narrow(0, i, 1), x0_audio.narrow(0, i, 1)});
  return results;
}

}  // namespace flotilla::pipeline
