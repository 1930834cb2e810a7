// Conditioning: images and reference videos that a generated video is held to.
// An item either replaces a latent frame or appends tokens at its own positions; appended tokens
// start as zeros in the noisy latent and are held to the clean latent by the denoise mask.
// Formulas: ltx_core/conditioning of the LTX-2 reference. All latents are [B, C, F, H, W] of the
// VAE encoder.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <variant>

#include "diffusion/latent_state.h"
#include "diffusion/positions.h"

namespace flotilla::diffusion {

// Puts `latent` in place of the frames from `latent_frame` on.
struct ReplaceFrame {
  at::Tensor latent;
  int64_t latent_frame = 0;
  double strength = 1.0;  // 1: stays clean, 0: is denoised like the rest
};

// How strongly appended tokens and the tokens of the video see each other, in [0, 1]: a scalar, [M]
// or [B, M] for M appended tokens. Undefined: fully.
using AttentionStrength = at::Tensor;

// Appends `latent` at picture `pixel_frame`, which may lie outside the video (negative: before it).
struct AppendKeyframe {
  at::Tensor latent;
  int64_t pixel_frame = 0;
  double strength = 1.0;
  int64_t num_pixel_frames = 1;  // pictures that the latent encodes; 1: each frame is a picture
  AttentionStrength attention;
};

// Appends a reference video, whose pixels and pictures stand for `scale` of the target's.
struct AppendReference {
  at::Tensor latent;
  ReferenceScale scale;
  double strength = 1.0;
  AttentionStrength attention;
};

using ConditioningItem = std::variant<ReplaceFrame, AppendKeyframe, AppendReference>;

// Applies the items in order to a state of `grid`. Tensors of the items move to the state's device
// and dtype. Errors (ErrorKind::input): a latent that does not fit the grid, a frame outside it, a
// strength outside [0, 1], an attention strength of a wrong shape.
LatentState apply_conditioning(LatentState state, const VideoGrid& grid,
                               std::span<const ConditioningItem> items);

}  // namespace flotilla::diffusion
