#include "vae/decoder.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::vae {
namespace {

// One number tells whether a tile is finite: NaN and infinity survive the sum, pixels cannot
// overflow it.
void check_finite(const at::Tensor& patches, int64_t tile_idx, const TilePlan& plan) {
  if (at::isfinite(patches.sum(at::kFloat)).item<bool>()) return;
  fail(ErrorKind::non_finite, fmt::format("decoded video: NaN or infinity in tile {} of {}",
                                          tile_idx + 1, plan.num_tiles()));
}

// In the arena's own memory, whose views by name are not used after this.
void lay_channels_innermost(DecoderWeights& weights) {
  vae::lay_channels_innermost(weights.conv_in.weight);
  vae::lay_channels_innermost(weights.conv_out.weight);
  for (Block& block : weights.blocks) {
    for (ResidualLayer& layer : block.layers) {
      vae::lay_channels_innermost(layer.conv1.weight);
      vae::lay_channels_innermost(layer.conv2.weight);
    }
    if (block.conv.weight.defined()) vae::lay_channels_innermost(block.conv.weight);
  }
}

}  // namespace

at::Tensor to_uint8(const at::Tensor& frames) { return ops::frame_bytes(frames); }

at::Tensor to_unit_range(at::Tensor pixels) { return pixels.add_(1.0).mul_(0.5).clamp_(0.0, 1.0); }

DecoderWeights bind_decoder(const DecoderConfig& config, loader::WeightBinder& binder) {
  loader::WeightBinder decoder = binder.scope("decoder.");
  DecoderWeights weights;
  int64_t channels = config.bottleneck_channels();
  weights.conv_in = take_conv(decoder, "conv_in", config.latent_channels, channels);
  for (const BlockConfig& block : config.blocks) {
    const int64_t out = channels / block.multiplier;
    loader::WeightBinder scope = decoder.scope(fmt::format("up_blocks.{}.", weights.blocks.size()));
    weights.blocks.push_back(bind_block(block, channels, out, scope));
    channels = out;
  }
  const int64_t patch_channels = config.pixel_channels * config.patch_size * config.patch_size;
  weights.conv_out = take_conv(decoder, "conv_out", channels, patch_channels);
  weights.statistics = bind_statistics(config.latent_channels, binder);
  return weights;
}

VideoDecoder::VideoDecoder(DecoderConfig config, DecoderWeights weights,
                           std::shared_ptr<const loader::WeightArena> arena)
    : config_(std::move(config)), weights_(std::move(weights)), arena_(std::move(arena)) {}

VideoDecoder VideoDecoder::from_checkpoint(std::shared_ptr<const loader::Checkpoint> checkpoint,
                                           at::ScalarType dtype, at::Device device,
                                           const loader::LoadArena& load) {
  return with_context("video decoder", [&] {
    const VaeLocation at = locate_vae(*checkpoint);
    DecoderConfig config = DecoderConfig::from_json(at.config);
    auto arena = std::make_shared<loader::WeightArena>(
        checkpoint,
        std::vector<std::string>{at.prefix + "decoder.", at.prefix + "per_channel_statistics."},
        dtype, device);
    loader::WeightBinder binder(*arena);
    loader::WeightBinder scope = binder.scope(at.prefix);
    DecoderWeights weights = bind_decoder(config, scope);
    binder.finish();
    if (!device.is_meta()) load(*arena);
    if (device.is_cuda()) lay_channels_innermost(weights);
    return VideoDecoder(std::move(config), std::move(weights), std::move(arena));
  });
}

void VideoDecoder::check_latent(const at::Tensor& latent) const {
  FLOTILLA_ASSERT(latent.dim() == 5);
  if (latent.size(1) != config_.latent_channels || latent.numel() == 0) {
    fail(
        ErrorKind::config,
        fmt::format("the video decoder takes latents [B, {}, F, H, W] with no side of zero, not {}",
                    config_.latent_channels, shape_text(latent.sizes().vec())));
  }
}

ops::MapSum VideoDecoder::decode_patches(const at::Tensor& latent) const {
  check_latent(latent);
  const at::Tensor& like = weights_.conv_in.weight;
  const at::Tensor cells =
      weights_.statistics.un_normalize(latent.to(like.device(), like.scalar_type()));
  ops::MapSum x = convolve_open(padded(cells, borders()), weights_.conv_in, borders());
  for (const Block& block : weights_.blocks) x = apply_block(block, std::move(x), borders());
  const at::Tensor buffer = padded_norm_silu(x, borders(), Keep::nothing);
  x = {};
  return convolve_open(buffer, weights_.conv_out, borders());
}

at::Tensor VideoDecoder::decode(const at::Tensor& latent) const {
  return ops::unpatchify(decode_patches(latent), config_.patch_size);
}

void VideoDecoder::decode_frames(const at::Tensor& latent, const TilePlan& plan,
                                 const FrameBatchCallback& on_frames,
                                 const TileCallback& on_tile) const {
  FrameStream stream(*this, latent, plan, on_tile);
  for (at::Tensor frames = stream.next(); frames.defined(); frames = stream.next())
    on_frames(frames);
}

FrameStream::FrameStream(const VideoDecoder& decoder, at::Tensor latent, const TilePlan& plan,
                         TileCallback on_tile)
    : decoder_(decoder),
      latent_(std::move(latent)),
      plan_(plan),
      on_tile_(std::move(on_tile)),
      blender_(plan, [this](at::Tensor pixels) { ready_ = to_unit_range(std::move(pixels)); }) {
  decoder_.check_latent(latent_);
  FLOTILLA_ASSERT(latent_.size(0) == 1 && plan_.fits(latent_));
}

at::Tensor FrameStream::next() {
  while (!ready_.defined() && next_tile_ < plan_.num_tiles()) {
    const ops::MapSum patches = decoder_.decode_patches(plan_.tile_of(latent_, next_tile_));
    check_finite(patches.x, next_tile_, plan_);
    const int64_t patch_size = decoder_.config().patch_size;
    if (plan_.tiled()) {
      blender_.add(ops::unpatchify(patches, patch_size)[0].permute({1, 2, 3, 0}));  // [F, H, W, 3]
    } else {
      ready_ = ops::unpatchify_frames(patches, patch_size);
    }
    ++next_tile_;
    if (on_tile_) on_tile_(next_tile_, plan_.num_tiles());
  }
  return std::exchange(ready_, {});
}

}  // namespace flotilla::vae
