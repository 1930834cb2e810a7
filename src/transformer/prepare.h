// From a modality (latent tokens, timesteps, positions, text) to what the blocks read.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/token_rows.h"
#include "transformer/block.h"
#include "transformer/weights.h"

namespace flotilla::transformer {

struct Modality {
  at::Tensor latent;             // [B, T, in_channels]
  at::Tensor sigma;              // float32 [B]
  ops::TimestepTable timesteps;  // of the whole clip: sigma times each token's denoise mask
  at::Tensor context;       // [B, S, context_dim]; with caption_projection [B, S, caption_channels]
  at::Tensor context_mask;  // int64 [B, S] of 0 and 1, or additive float; undefined: none
  at::Tensor attention_mask;  // [B, T, T] (or broadcastable) in [0, 1]; undefined: none
  at::Tensor video_mask;      // audio only: [B, Ta, Tv] in [0, 1], the video that sound attends to
  at::Tensor
      keyframes_mask;  // [B, T, 1], above 0 where a token is a single pixel frame; undefined: none
  bool enabled = true;
};

// RoPE tables depend on positions only: made once a stage, not once a step.
struct RopeTables {
  ops::RopeTable video;
  ops::RopeTable audio;
  ops::RopeTable video_cross;
  ops::RopeTable audio_cross;
};

// positions: video [B, 3, T, 2] (seconds, pixels, pixels), audio [B, 1, T, 2] (seconds); either may
// be undefined.
RopeTables make_rope_tables(const TransformerConfig& config, const at::Tensor& video_positions,
                            const at::Tensor& audio_positions, at::ScalarType dtype);

struct PreparedStream {
  at::Tensor x;  // [B, T, dim]
  StreamInputs inputs;
  at::Tensor embedded_timestep;  // [U, dim]
};

// `other_sigma`: sigma of the other modality [B]; it drives this stream's cross-modal gate
// (undefined when there is no other modality).
PreparedStream prepare_video(const TransformerConfig& config, const TransformerWeights& weights,
                             const Modality& video, const at::Tensor& other_sigma,
                             const RopeTables& rope);
PreparedStream prepare_audio(const TransformerConfig& config, const TransformerWeights& weights,
                             const Modality& audio, const at::Tensor& other_sigma,
                             const RopeTables& rope);

// [0, 1] -> additive: log of the value, the lowest number for 0. [B, Tq, Tk] -> [B, 1, Tq, Tk].
at::Tensor additive_token_mask(const at::Tensor& mask, at::ScalarType dtype);
// int64 [B, S] of 0 and 1 -> additive [B, 1, 1, S]; additive masks pass.
at::Tensor additive_context_mask(const at::Tensor& mask, at::ScalarType dtype);

}  // namespace flotilla::transformer
