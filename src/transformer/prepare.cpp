#include "transformer/prepare.h"

#include <ATen/ATen.h>

#include <limits>

#include "ops/linear.h"

namespace flotilla::transformer {
namespace {

// The largest finite number and the smallest normal one of the floating types that latents have.
struct Limits {
  double max;
  double tiny;
};
Limits limits_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) {
    return {static_cast<double>(std::numeric_limits<c10::BFloat16>::max()),
            static_cast<double>(std::numeric_limits<c10::BFloat16>::min())};
  }
  if (dtype == at::kHalf) {
    return {static_cast<double>(std::numeric_limits<c10::Half>::max()),
            static_cast<double>(std::numeric_limits<c10::Half>::min())};
  }
  return {static_cast<double>(std::numeric_limits<float>::max()),
          static_cast<double>(std::numeric_limits<float>::min())};
}

at::Tensor apply(const loader::Linear& layer, const at::Tensor& x) {
  return ops::linear(x, layer.weight, layer.bias);
}

at::Tensor project_caption(const CaptionProjectionWeights& weights, const at::Tensor& context) {
  return apply(weights.linear_2, at::gelu(apply(weights.linear_1, context), "tanh"));
}

PreparedStream prepare_stream(const TransformerConfig& config, const StreamWeights& weights,
                              const Modality& modality, const at::Tensor& other_sigma) {
  PreparedStream prepared;
  const at::ScalarType dtype = modality.latent.scalar_type();
  prepared.x = apply(weights.patchify, modality.latent);
  StreamInputs& inputs = prepared.inputs;
  inputs.enabled = modality.enabled;
  inputs.context = config.caption_projection
                       ? project_caption(weights.caption_projection, modality.context)
                       : modality.context;
  if (modality.context_mask.defined())
    inputs.context_mask = additive_context_mask(modality.context_mask, dtype);
  if (modality.attention_mask.defined())
    inputs.self_mask = additive_token_mask(modality.attention_mask, dtype);

  const at::Tensor timesteps = modality.timesteps.values * config.timestep_scale;
  inputs.row_of_token = modality.timesteps.index;
  AdaLnOutput ada = adaln(weights.adaln, timesteps);
  inputs.ada_rows = ada.rows;
  prepared.embedded_timestep = ada.embedded;
  inputs.cross_rows = adaln(weights.cross_scale_shift, timesteps).rows;
  if (config.cross_attention_adaln && config.prompt_adaln) {
    inputs.prompt_rows = adaln(weights.prompt_adaln, modality.sigma * config.timestep_scale).rows;
  }
  if (other_sigma.defined()) {
    // Scaled twice, as the reference does it, so that float32 rounds alike.
    const double factor = config.cross_timestep_scale / config.timestep_scale;
    inputs.cross_gate = adaln(weights.cross_gate, other_sigma * config.timestep_scale * factor)
                            .rows;  // [B, 1, dim]
  }
  return prepared;
}

}  // namespace

at::Tensor additive_token_mask(const at::Tensor& mask, at::ScalarType dtype) {
  const Limits limits = limits_of(dtype);
  const at::Tensor bias = mask.clamp_min(limits.tiny).log().to(dtype);
  return at::where(mask.gt(0), bias, at::full_like(bias, -limits.max))
      .unsqueeze(1);  // [B, 1, Tq, Tk]
}

at::Tensor additive_context_mask(const at::Tensor& mask, at::ScalarType dtype) {
  if (at::isFloatingType(mask.scalar_type())) return mask;
  return (mask - 1).to(dtype).unsqueeze(1).unsqueeze(1) * limits_of(dtype).max;
}

RopeTables make_rope_tables(const TransformerConfig& config, const at::Tensor& video_positions,
                            const at::Tensor& audio_positions, at::ScalarType dtype) {
  RopeTables tables;
  if (video_positions.defined()) {
    tables.video = ops::make_rope_table(video_positions, config.video_rope(), dtype);
    tables.video_cross =
        ops::make_rope_table(video_positions.narrow(1, 0, 1), config.cross_rope(), dtype);
  }
  if (audio_positions.defined()) {
    tables.audio = ops::make_rope_table(audio_positions, config.audio_rope(), dtype);
    tables.audio_cross =
        ops::make_rope_table(audio_positions.narrow(1, 0, 1), config.cross_rope(), dtype);
  }
  return tables;
}

PreparedStream prepare_video(const TransformerConfig& config, const TransformerWeights& weights,
                             const Modality& video, const at::Tensor& other_sigma,
                             const RopeTables& rope) {
  PreparedStream prepared = prepare_stream(config, weights.video, video, other_sigma);
  if (weights.keyframe_embedding.defined() && video.keyframes_mask.defined()) {
    prepared.x = prepared.x + video.keyframes_mask.gt(0).to(prepared.x.scalar_type()) *
                                  weights.keyframe_embedding;
  }
  prepared.inputs.rope = rope.video;
  prepared.inputs.cross_rope = rope.video_cross;
  return prepared;
}

PreparedStream prepare_audio(const TransformerConfig& config, const TransformerWeights& weights,
                             const Modality& audio, const at::Tensor& other_sigma,
                             const RopeTables& rope) {
  PreparedStream prepared = prepare_stream(config, weights.audio, audio, other_sigma);
  if (audio.video_mask.defined()) {
    prepared.inputs.video_mask = additive_token_mask(audio.video_mask, audio.latent.scalar_type());
  }
  prepared.inputs.rope = rope.audio;
  prepared.inputs.cross_rope = rope.audio_cross;
  return prepared;
}

}  // namespace flotilla::transformer
