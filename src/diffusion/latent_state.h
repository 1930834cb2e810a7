// The tokens of one stream on their way from noise to latent, with what the model must know of
// them. The tokens of the video (or sound) itself come first; conditioning tokens are appended at
// the end and cut off again by target_tokens(). Next: conditioning.h (images), noise.h (the start).
#pragma once

#include <ATen/ATen.h>

#include "diffusion/latent_size.h"
#include "diffusion/positions.h"

namespace flotilla::diffusion {

struct LatentState {
  at::Tensor latent;          // [B, T, D] noisy tokens, in the dtype of the run
  at::Tensor clean;           // [B, T, D] what the tokens are held to where the mask is below 1
  at::Tensor denoise_mask;    // [B, T, 1] float32; 1: denoised fully, 0: stays clean
  at::Tensor positions;       // [B, 3 or 1, T, 2] float32, see positions.h
  at::Tensor attention_mask;  // [B, T, T] weights of self-attention in [0, 1]; undefined: all 1
  at::Tensor
      keyframes_mask;  // [B, T, 1] float32, 1 on tokens of a single picture; audio: undefined
  int64_t num_target_tokens = 0;  // without conditioning tokens

  int64_t num_tokens() const { return latent.size(1); }
};

struct AvLatents {
  LatentState video;
  LatentState audio;
};

// A tensor for each stream.
struct AvTokens {
  at::Tensor video;
  at::Tensor audio;
};

// All tokens free, latent and clean equal to `initial` [B, C, F, H, W], or zero when it is
// undefined. `options` gives dtype and device. Errors (ErrorKind::input): `initial` of another
// size.
LatentState make_video_state(const VideoGrid& grid, const at::TensorOptions& options,
                             const at::Tensor& initial = {});
// The same for sound, `initial` [B, C, T, mel].
LatentState make_audio_state(const AudioLatentSize& size, const at::TensorOptions& options,
                             const at::Tensor& initial = {}, const AudioTiming& timing = {});

// The noise level of each token, [B, T, 1] float32.
at::Tensor token_timesteps(const LatentState& state, double sigma);

// Holds a prediction [B, T, D] to the clean tokens: denoised * mask + clean * (1 - mask), in the
// dtype of the prediction.
at::Tensor hold_clean(const at::Tensor& denoised, const LatentState& state);

// Tokens without the conditioning tokens, [B, num_target_tokens, D].
at::Tensor target_tokens(const LatentState& state);

}  // namespace flotilla::diffusion
