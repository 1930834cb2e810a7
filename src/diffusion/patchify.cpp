#include "diffusion/patchify.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::diffusion {
namespace {

void check_rank(const at::Tensor& tensor, int64_t rank, std::string_view what) {
  if (tensor.dim() == rank && tensor.numel() > 0) return;
  fail(ErrorKind::input, fmt::format("{} of shape {} must have {} dimensions, none of them empty",
                                     what, shape_text(tensor.sizes()), rank));
}

void check_tokens(const at::Tensor& tokens, at::IntArrayRef expected) {
  if (tokens.sizes() == expected) return;
  fail(ErrorKind::input, fmt::format("tokens of shape {} do not fill the latent, which needs {}",
                                     shape_text(tokens.sizes()), shape_text(expected)));
}

}  // namespace

at::Tensor patchify_video(const at::Tensor& latent) {
  check_rank(latent, 5, "a video latent");
  return latent.flatten(2).transpose(1, 2).contiguous();  // [B, F*H*W, C]
}

at::Tensor unpatchify_video(const at::Tensor& tokens, const VideoLatentSize& size) {
  check_tokens(tokens, {size.batch, size.num_tokens(), size.channels});
  return tokens.transpose(1, 2).contiguous().view(
      {size.batch, size.channels, size.frames, size.height, size.width});
}

at::Tensor patchify_audio(const at::Tensor& latent) {
  check_rank(latent, 4, "an audio latent");
  return latent.transpose(1, 2).flatten(2).contiguous();  // [B, T, C*mel]
}

at::Tensor unpatchify_audio(const at::Tensor& tokens, const AudioLatentSize& size) {
  check_tokens(tokens, {size.batch, size.frames, size.channels * size.mel_bins});
  return tokens.reshape({size.batch, size.frames, size.channels, size.mel_bins})
      .transpose(1, 2)
      .contiguous();
}

VideoLatentSize size_of_video(const at::Tensor& latent) {
  check_rank(latent, 5, "a video latent");
  return {.batch = latent.size(0),
          .channels = latent.size(1),
          .frames = latent.size(2),
          .height = latent.size(3),
          .width = latent.size(4)};
}

AudioLatentSize size_of_audio(const at::Tensor& latent) {
  check_rank(latent, 4, "an audio latent");
  return {.batch = latent.size(0),
          .channels = latent.size(1),
          .frames = latent.size(2),
          .mel_bins = latent.size(3)};
}

}  // namespace flotilla::diffusion
