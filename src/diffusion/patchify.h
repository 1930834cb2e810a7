// Latents as the VAEs see them <-> tokens as the transformer sees them.
// Patches are single cells, so this is a permutation; video tokens run over frames, then rows, then
// columns, an audio token holds all channels and mel bins of one latent frame.
#pragma once

#include <ATen/ATen.h>

#include "diffusion/latent_size.h"

namespace flotilla::diffusion {

// [B, C, F, H, W] -> [B, F*H*W, C]; any dtype and device; contiguous result.
at::Tensor patchify_video(const at::Tensor& latent);
// [B, F*H*W, C] -> [B, C, F, H, W]. Errors (ErrorKind::input): tokens that do not fill `size`.
at::Tensor unpatchify_video(const at::Tensor& tokens, const VideoLatentSize& size);

// [B, C, T, mel] -> [B, T, C*mel].
at::Tensor patchify_audio(const at::Tensor& latent);
// [B, T, C*mel] -> [B, C, T, mel]. Errors (ErrorKind::input): tokens that do not fill `size`.
at::Tensor unpatchify_audio(const at::Tensor& tokens, const AudioLatentSize& size);

// Sizes of latents [B, C, F, H, W] and [B, C, T, mel]. Errors (ErrorKind::input): wrong rank,
// empty.
VideoLatentSize size_of_video(const at::Tensor& latent);
AudioLatentSize size_of_audio(const at::Tensor& latent);

}  // namespace flotilla::diffusion
