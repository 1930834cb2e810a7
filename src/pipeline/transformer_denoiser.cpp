#include "pipeline/transformer_denoiser.h"

#include <ATen/ATen.h>

#include "diffusion/stepper.h"

namespace flotilla::pipeline {
namespace {

transformer::Modality modality_of(const diffusion::LatentState& state, const at::Tensor& timesteps,
                                  const at::Tensor& context, double sigma) {
  transformer::Modality modality;
  modality.latent = state.latent;
  modality.sigma =
      at::full({state.latent.size(0)}, sigma, state.latent.options().dtype(at::kFloat));
  modality.timesteps = ops::make_timestep_table(timesteps);
  modality.context = context;
  modality.attention_mask = state.attention_mask;
  modality.keyframes_mask = state.keyframes_mask;
  return modality;
}

}  // namespace

TransformerDenoiser::TransformerDenoiser(const transformer::Transformer& model,
                                         const text::PromptEmbedding& prompt,
                                         const diffusion::AvLatents& latents)
    : model_(model),
      video_context_(prompt.video_context),
      audio_context_(prompt.audio_context),
      rope_(transformer::make_rope_tables(model.config(), latents.video.positions,
                                          latents.audio.positions,
                                          latents.video.latent.scalar_type())) {}

diffusion::AvPrediction TransformerDenoiser::predict(const diffusion::AvLatents& latents,
                                                     double sigma, int64_t) {
  const at::Tensor video_timesteps = diffusion::token_timesteps(latents.video, sigma);
  const at::Tensor audio_timesteps = diffusion::token_timesteps(latents.audio, sigma);
  const auto video = modality_of(latents.video, video_timesteps, video_context_, sigma);
  const auto audio = modality_of(latents.audio, audio_timesteps, audio_context_, sigma);
  const auto velocity = model_.forward(&video, &audio, rope_);
  diffusion::AvPrediction prediction;
  prediction.video.denoised =
      diffusion::to_denoised(latents.video.latent, velocity.video, video_timesteps);
  prediction.audio.denoised =
      diffusion::to_denoised(latents.audio.latent, velocity.audio, audio_timesteps);
  return prediction;
}

}  // namespace flotilla::pipeline
