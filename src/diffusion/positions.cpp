#include "diffusion/positions.h"

#include <fmt/format.h>

#include "base/error.h"

namespace flotilla::diffusion {
namespace {

void check_grid(const VideoGrid& grid, const VideoLatentSize& size) {
  if (!(grid.frame_rate > 0.0)) {
    fail(ErrorKind::config, fmt::format("frame_rate ({}) must be positive", grid.frame_rate));
  }
  FLOTILLA_ASSERT(size.batch > 0 && size.frames > 0 && size.height > 0 && size.width > 0);
}

// Cell bounds in pictures and pixels, int64 (B, 3, T, 2).
at::Tensor pixel_bounds(const VideoLatentSize& size, const ScaleFactors& scale, bool causal) {
  const at::Tensor factors = at::tensor({scale.time, scale.height, scale.width}, at::kLong);
  at::Tensor bounds = latent_bounds(size) * factors.view({1, 3, 1, 1});
  if (causal) {
    at::Tensor time = bounds.select(1, 0);
    time.copy_((time + (1 - scale.time)).clamp_min(0));
  }
  return bounds;
}

}  // namespace

at::Tensor latent_bounds(const VideoLatentSize& size, at::Device device) {
  const auto indices = at::TensorOptions().dtype(at::kLong);
  const at::Tensor starts =
      at::stack(at::meshgrid({at::arange(size.frames, indices), at::arange(size.height, indices),
                              at::arange(size.width, indices)},
                             "ij"));                                            // [3, F, H, W]
  const at::Tensor bounds = at::stack({starts, starts + 1}, -1).flatten(1, 3);  // [3, T, 2]
  return bounds.unsqueeze(0).repeat({size.batch, 1, 1, 1}).to(device);
}

at::Tensor video_positions(const VideoGrid& grid, at::Device device) {
  check_grid(grid, grid.size);
  at::Tensor positions = pixel_bounds(grid.size, grid.scale, grid.causal).to(at::kFloat);
  positions.select(1, 0).div_(grid.frame_rate);
  return positions.to(device);
}

at::Tensor keyframe_positions(const VideoGrid& grid, const VideoLatentSize& keyframes,
                              int64_t pixel_frame, int64_t num_pixel_frames, at::Device device) {
  check_grid(grid, keyframes);
  // Only a keyframe at the very start stands where the causal first latent frame stands.
  const bool causal = grid.causal && pixel_frame == 0;
  at::Tensor positions = pixel_bounds(keyframes, grid.scale, causal);
  at::Tensor time = positions.select(1, 0);  // [B, T, 2]
  time.add_(pixel_frame);
  if (num_pixel_frames == 1) time.select(2, 1).copy_(time.select(2, 0) + 1);
  positions = positions.to(at::kFloat);
  positions.select(1, 0).div_(grid.frame_rate);
  return positions.to(device);
}

at::Tensor reference_positions(const VideoGrid& grid, const VideoLatentSize& reference,
                               const ReferenceScale& scale, at::Device device) {
  check_grid(grid, reference);
  FLOTILLA_ASSERT(scale.downscale >= 1 && scale.temporal >= 1);
  at::Tensor positions = pixel_bounds(reference, grid.scale, grid.causal).to(at::kFloat);
  at::Tensor time = positions.select(1, 0);
  time.div_(grid.frame_rate / static_cast<double>(scale.temporal));
  if (scale.temporal != 1) {
    // The last reference frame ends with the video; the causal first one may not start before it.
    const int64_t first_frame_pictures = grid.causal ? 1 : grid.scale.time;
    const float first_frame_seconds =
        static_cast<float>(first_frame_pictures) / static_cast<float>(grid.frame_rate);
    time.sub_(static_cast<float>(scale.temporal - 1) * first_frame_seconds).clamp_min_(0);
  }
  positions.narrow(1, 1, 2).mul_(scale.downscale);
  return positions.to(device);
}

at::Tensor audio_positions(const AudioLatentSize& size, const AudioTiming& timing,
                           at::Device device) {
  FLOTILLA_ASSERT(size.batch > 0 && size.frames > 0);
  at::Tensor mel_frames = at::arange(size.frames + 1, at::kFloat) * timing.downsample;
  if (timing.causal) mel_frames = (mel_frames + (1 - timing.downsample)).clamp_min(0);
  const at::Tensor seconds = mel_frames * timing.hop_length / timing.sample_rate;  // [T + 1]
  const at::Tensor bounds =
      at::stack({seconds.narrow(0, 0, size.frames), seconds.narrow(0, 1, size.frames)}, -1);
  return bounds.repeat({size.batch, 1, 1, 1}).to(device);  // [B, 1, T, 2]
}

}  // namespace flotilla::diffusion
