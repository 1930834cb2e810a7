#include "pipeline/preview.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/base64.h"
#include "base/error.h"
#include "base/log.h"
#include "diffusion/patchify.h"
#include "io/png_writer.h"
#include "pipeline/decode.h"

namespace flotilla::pipeline {
namespace {

// Keeps an event far below the 1 MiB of a line (docs/commands/serve.md), whatever the picture: it
// has 192 KiB of pixels at most, which are 257 KiB as text when nothing can be compressed.
constexpr int64_t kLongestSide = 256;

// Height and width of the picture of a clip of this size.
std::array<int64_t, 2> picture_size(int64_t height, int64_t width) {
  const int64_t longest = std::max(height, width);
  if (longest <= kLongestSide) return {height, width};
  const auto scaled = [&](int64_t side) {
    return std::max<int64_t>(1, (side * kLongestSide + longest / 2) / longest);
  };
  return {scaled(height), scaled(width)};
}

// latent: [1, C, 1, H, W], normalised -> uint8 [height, width, 3] on the CPU.
at::Tensor decode_picture(const vae::VideoDecoder& decoder, const at::Tensor& latent) {
  const at::Tensor pixels = decoder.decode(latent).squeeze(2).to(at::kFloat);  // [1, 3, H', W']
  const at::Tensor small =
      at::adaptive_avg_pool2d(pixels, picture_size(pixels.size(2), pixels.size(3)));
  if (!at::isfinite(small).all().item<bool>())
    fail(ErrorKind::non_finite, "a picture has pixels that are NaN or infinite");
  return vae::to_uint8(vae::to_unit_range(small).permute({0, 2, 3, 1}).contiguous())[0].cpu();
}

}  // namespace

bool StagePreviews::is_due(int64_t step) const {
  const Previews* previews = session_.previews;
  return previews != nullptr && !previews->is_over && step % previews->every == 0 &&
         step < stage_.num_steps();
}

diffusion::AvPrediction StagePreviews::predict(const diffusion::AvLatents& latents, double sigma,
                                               int64_t step) {
  diffusion::AvPrediction prediction = denoiser_.predict(latents, sigma, step);
  if (session_.ranks.is_driver() && is_due(step + 1)) {
    tokens_ = diffusion::hold_clean(prediction.video.denoised, latents.video)
                  .narrow(1, 0, stage_.grid.size.tokens_per_frame())
                  .clone();
  }
  return prediction;
}

void StagePreviews::after_step(int64_t step) {
  if (!is_due(step)) return;
  try {
    session_.ranks.agreed([&] {
      const auto decoder = video_decoder(session_);
      if (session_.ranks.is_driver()) tell(*decoder, step);
    });
  } catch (const comm::AgreedError& error) {
    give_up(error);
  } catch (...) {
    if (session_.ranks.context != nullptr) throw;
    give_up(comm::current_error());
  }
}

void StagePreviews::tell(const vae::VideoDecoder& decoder, int64_t step) const {
  if (session_.previews->events == nullptr) return;
  diffusion::VideoLatentSize size = stage_.grid.size;
  size.frames = 1;
  const at::Tensor picture = decode_picture(decoder, diffusion::unpatchify_video(tokens_, size));
  const int64_t height = picture.size(0), width = picture.size(1);
  const auto png = io::png_bytes(
      {picture.const_data_ptr<uint8_t>(), static_cast<size_t>(picture.numel())}, width, height);
  session_.previews->events->emit({{"event", "preview"},
                                   {"stage", stage_.name},
                                   {"step", step},
                                   {"steps", stage_.num_steps()},
                                   {"width", width},
                                   {"height", height},
                                   {"format", "png"},
                                   {"data", base64(png)},
                                   {"at_s", session_.phases.elapsed_s()}});
}

void StagePreviews::give_up(const Error& error) {
  session_.previews->is_over = true;
  if (session_.ranks.is_driver())
    log::warn("preview", "the job goes on without previews: {}", error.what());
}

}  // namespace flotilla::pipeline
