#include "vae/encoder.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::vae {
namespace {

void check_pixels(const at::Tensor& pixels, const EncoderConfig& config) {
  FLOTILLA_ASSERT(pixels.dim() == 5);
  const diffusion::ScaleFactors scale = config.scale();
  if (pixels.size(1) != config.pixel_channels) {
    fail(ErrorKind::config, fmt::format("the video encoder takes {} colour channels, not {}",
                                        config.pixel_channels, pixels.size(1)));
  }
  const int64_t frames = pixels.size(2);
  if (frames < 1 || (frames - 1) % scale.time != 0) {
    const int64_t below = std::max<int64_t>(0, (frames - 1) / scale.time) * scale.time + 1;
    fail(ErrorKind::config,
         fmt::format("the video encoder takes 1 + k * {} frames, not {}; use {} or {}", scale.time,
                     frames, below, below + scale.time));
  }
  if (pixels.size(3) % scale.height != 0 || pixels.size(4) % scale.width != 0 ||
      pixels.size(3) == 0 || pixels.size(4) == 0) {
    fail(ErrorKind::config, fmt::format("the video encoder takes pictures of multiples of {} x {} "
                                        "pixels, not {} x {} (height x width)",
                                        scale.height, scale.width, pixels.size(3), pixels.size(4)));
  }
}

}  // namespace

EncoderWeights bind_encoder(const EncoderConfig& config, loader::WeightBinder& binder) {
  loader::WeightBinder encoder = binder.scope("encoder.");
  EncoderWeights weights;
  int64_t channels = config.latent_channels;
  const int64_t patch_channels = config.pixel_channels * config.patch_size * config.patch_size;
  weights.conv_in = take_conv(encoder, "conv_in", patch_channels, channels);
  for (const BlockConfig& block : config.blocks) {
    const int64_t out = channels * block.multiplier;
    loader::WeightBinder scope =
        encoder.scope(fmt::format("down_blocks.{}.", weights.blocks.size()));
    weights.blocks.push_back(bind_block(block, channels, out, scope));
    channels = out;
  }
  weights.conv_out =
      take_conv(encoder, "conv_out", channels, config.latent_channels + config.variance_channels);
  weights.statistics = bind_statistics(config.latent_channels, binder);
  return weights;
}

VideoEncoder::VideoEncoder(EncoderConfig config, EncoderWeights weights,
                           std::shared_ptr<const loader::WeightArena> arena)
    : config_(std::move(config)), weights_(std::move(weights)), arena_(std::move(arena)) {}

VideoEncoder VideoEncoder::from_checkpoint(std::shared_ptr<const loader::Checkpoint> checkpoint,
                                           at::ScalarType dtype, at::Device device,
                                           const loader::LoadArena& load) {
  return with_context("video encoder", [&] {
    const VaeLocation at = locate_vae(*checkpoint);
    EncoderConfig config = EncoderConfig::from_json(at.config);
    auto arena = std::make_shared<loader::WeightArena>(
        checkpoint,
        std::vector<std::string>{at.prefix + "encoder.", at.prefix + "per_channel_statistics."},
        dtype, device);
    loader::WeightBinder binder(*arena);
    loader::WeightBinder scope = binder.scope(at.prefix);
    EncoderWeights weights = bind_encoder(config, scope);
    binder.finish();
    if (!device.is_meta()) load(*arena);
    // The variances are not used, so they are not computed.
    weights.conv_out.weight = weights.conv_out.weight.narrow(0, 0, config.latent_channels);
    weights.conv_out.bias = weights.conv_out.bias.narrow(0, 0, config.latent_channels);
    return VideoEncoder(std::move(config), std::move(weights), std::move(arena));
  });
}

at::Tensor VideoEncoder::encode(const at::Tensor& pixels) const {
  check_pixels(pixels, config_);
  const Borders borders{.space = config_.padding, .causal = true};
  const at::Tensor& like = weights_.conv_in.weight;
  at::Tensor x = patchify_pixels(pixels.to(like.device(), like.scalar_type()), config_.patch_size);
  x = convolve(padded(x, borders), weights_.conv_in, borders);
  for (const Block& block : weights_.blocks) x = apply_block(block, std::move(x), borders);
  const at::Tensor means = convolve(padded_norm_silu(x, borders), weights_.conv_out, borders);
  return weights_.statistics.normalize(means).contiguous();
}

}  // namespace flotilla::vae
