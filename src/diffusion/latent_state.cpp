#include "diffusion/latent_state.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "diffusion/patchify.h"

namespace flotilla::diffusion {
namespace {

at::Tensor initial_or_zeros(const at::Tensor& initial, at::IntArrayRef shape,
                            const at::TensorOptions& options) {
  if (!initial.defined()) return at::zeros(shape, options);
  if (initial.sizes() != shape) {
    fail(ErrorKind::input, fmt::format("the first latent has shape {}, expected {}",
                                       shape_text(initial.sizes()), shape_text(shape)));
  }
  return initial.to(options);
}

LatentState free_state(const at::Tensor& tokens, const at::Tensor& positions) {
  return {.latent = tokens,
          .clean = tokens,
          .denoise_mask =
              at::ones({tokens.size(0), tokens.size(1), 1}, tokens.options().dtype(at::kFloat)),
          .positions = positions,
          .num_target_tokens = tokens.size(1)};
}

}  // namespace

LatentState make_video_state(const VideoGrid& grid, const at::TensorOptions& options,
                             const at::Tensor& initial) {
  const VideoLatentSize& size = grid.size;
  const at::Tensor latent = initial_or_zeros(
      initial, {size.batch, size.channels, size.frames, size.height, size.width}, options);
  LatentState state = free_state(patchify_video(latent), video_positions(grid, latent.device()));
  // A causal VAE encodes a single picture in the first latent frame.
  state.keyframes_mask = at::zeros_like(state.denoise_mask);
  state.keyframes_mask.narrow(1, 0, size.tokens_per_frame()).fill_(1.0);
  return state;
}

LatentState make_audio_state(const AudioLatentSize& size, const at::TensorOptions& options,
                             const at::Tensor& initial, const AudioTiming& timing) {
  const at::Tensor latent =
      initial_or_zeros(initial, {size.batch, size.channels, size.frames, size.mel_bins}, options);
  return free_state(patchify_audio(latent), audio_positions(size, timing, latent.device()));
}

at::Tensor token_timesteps(const LatentState& state, double sigma) {
  return state.denoise_mask * sigma;
}

at::Tensor hold_clean(const at::Tensor& denoised, const LatentState& state) {
  const at::Tensor& mask = state.denoise_mask;
  const at::Tensor blended = denoised * mask + state.clean.to(at::kFloat) * (1.0 - mask);
  return blended.to(denoised.scalar_type());
}

at::Tensor target_tokens(const LatentState& state) {
  return state.latent.narrow(1, 0, state.num_target_tokens);
}

}  // namespace flotilla::diffusion
