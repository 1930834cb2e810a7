// Where each token lies: the [start, end) intervals that the rotary embedding reads.
// Video: (B, 3, T, 2), seconds on the time axis, pixels on height and width. Audio: (B, 1, T, 2),
// seconds. All float32, tokens in the order of patchify.h. The first latent frame of a causal VAE
// covers one picture, so the time of every token is moved back by `scale.time - 1` pictures.
#pragma once

#include <ATen/ATen.h>

#include "diffusion/latent_size.h"

namespace flotilla::diffusion {

// The video that is being made: its latent, and how latent cells lie in time and picture.
struct VideoGrid {
  VideoLatentSize size;
  double frame_rate = 24.0;
  ScaleFactors scale;
  bool causal = true;
};

// Cell bounds in latent coordinates, int64 (B, 3, F*H*W, 2) over frame, row, column.
at::Tensor latent_bounds(const VideoLatentSize& size, at::Device device = at::kCPU);

// Positions of the tokens of the video itself.
at::Tensor video_positions(const VideoGrid& grid, at::Device device = at::kCPU);

// Positions of appended keyframe tokens that start at picture `pixel_frame` (may be negative).
// `num_pixel_frames` 1: each latent frame holds a single picture and lasts one picture.
at::Tensor keyframe_positions(const VideoGrid& grid, const VideoLatentSize& keyframes,
                              int64_t pixel_frame, int64_t num_pixel_frames = 1,
                              at::Device device = at::kCPU);

// Target pixels (pictures) per reference pixel (picture).
struct ReferenceScale {
  int64_t downscale = 1;
  int64_t temporal = 1;
};
// Positions of an appended reference video, stretched over the video that is being made.
at::Tensor reference_positions(const VideoGrid& grid, const VideoLatentSize& reference,
                               const ReferenceScale& scale, at::Device device = at::kCPU);

// Positions of audio tokens.
at::Tensor audio_positions(const AudioLatentSize& size, const AudioTiming& timing = {},
                           at::Device device = at::kCPU);

}  // namespace flotilla::diffusion
