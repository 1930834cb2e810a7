#include "audio/audio_vae.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "audio/config_values.h"
#include "base/text.h"

namespace flotilla::audio {
namespace {

constexpr double kNormEps = 1e-6;
constexpr int64_t kNumLevels = 3;
// Far above any model; keeps a damaged file from filling the memory.
constexpr int64_t kMaxBlocks = 64;

void refuse_attention(const loader::ConfigReader& ddconfig) {
  // Absent means yes for the middle block.
  if (!ddconfig.has("mid_block_add_attention")) {
    fail(ErrorKind::input,
         fmt::format("{}: \"mid_block_add_attention\" is missing, which means attention; it is not "
                     "implemented",
                     ddconfig.where()));
  }
  ddconfig.require<bool>("mid_block_add_attention", {false});
  const auto with_attention =
      ddconfig.get<std::vector<int64_t>>("attn_resolutions", std::vector<int64_t>{8, 16, 32});
  const int64_t resolution = ddconfig.get<int64_t>("resolution", 256);
  for (int64_t level = 0; level < kNumLevels; ++level) {
    const int64_t here = resolution >> level;
    if (std::find(with_attention.begin(), with_attention.end(), here) != with_attention.end()) {
      fail(ErrorKind::input, fmt::format("{}: attention at resolution {} is not implemented",
                                         ddconfig.where(), here));
    }
  }
}

void refuse_unimplemented(const loader::ConfigReader& ddconfig) {
  ddconfig.require<std::string>("norm_type", {"pixel"});
  // A null is a value of its own here: no causal axis at all.
  if (ddconfig.json().contains("causality_axis") && !ddconfig.has("causality_axis")) {
    ddconfig.fail_value("causality_axis", "is not implemented; implemented: [\"height\"]");
  }
  ddconfig.require<std::string>("causality_axis", {"height"});
  ddconfig.require<int64_t>("out_ch", {kChannels});
  ddconfig.require<bool>("resamp_with_conv", {true});
  ddconfig.require<bool>("give_pre_end", {false});
  ddconfig.require<bool>("tanh_out", {false});
  refuse_attention(ddconfig);
}

Conv2d take_conv(loader::WeightBinder binder, int64_t in, int64_t out, int64_t kernel) {
  // Two names: a causal convolution is a module that holds a plain one.
  return {binder.take("conv.weight", {out, in, kernel, kernel}), binder.take("conv.bias", {out})};
}

ResnetBlock take_block(const loader::WeightBinder& binder, int64_t in, int64_t out) {
  ResnetBlock block;
  block.conv1 = take_conv(binder.scope("conv1."), in, out, 3);
  block.conv2 = take_conv(binder.scope("conv2."), out, out, 3);
  if (in != out) block.shortcut = take_conv(binder.scope("nin_shortcut."), in, out, 1);
  return block;
}

// 3 x 3, same size: frequency is padded on both sides, time on the past side only.
at::Tensor causal_conv(const at::Tensor& x, const Conv2d& conv) {
  const int64_t kernel = conv.weight.size(2);
  const at::Tensor padded = at::constant_pad_nd(x, {0, 0, kernel - 1, 0});
  return at::conv2d(padded, conv.weight, conv.bias, /*stride=*/1,
                    /*padding=*/at::IntArrayRef{0, kernel / 2});
}

// x / rms(x) over the channels, then SiLU. [B, C, T, F]
at::Tensor norm_silu(const at::Tensor& x) {
  const at::Tensor rms = at::sqrt(at::mean(x * x, {1}, /*keepdim=*/true) + kNormEps);
  at::Tensor y = at::div(x, rms);
  return at::silu_(y);
}

at::Tensor run_block(const at::Tensor& x, const ResnetBlock& block) {
  at::Tensor y = causal_conv(norm_silu(x), block.conv1);
  y = causal_conv(norm_silu(y), block.conv2);
  if (!block.shortcut.weight.defined()) return y.add_(x);
  return y.add_(at::conv2d(x, block.shortcut.weight, block.shortcut.bias));
}

// Doubles time and frequency. The first output row sees nothing but padding and the first input
// twice over; dropping it keeps the length at 1 + 2n. [B, C, T, F] -> [B, C, 2T-1, 2F]
at::Tensor run_upsample(const at::Tensor& x, const Conv2d& conv) {
  const at::Tensor doubled = at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)});
  return causal_conv(doubled, conv).slice(/*dim=*/2, /*start=*/1);
}

}  // namespace

AudioDecoderConfig AudioDecoderConfig::from_json(const loader::ConfigReader& audio_vae) {
  const auto ddconfig = audio_vae.object("model").object("params").object("ddconfig");
  refuse_unimplemented(ddconfig);
  AudioDecoderConfig config;
  config.format = AudioFormat::from_json(audio_vae);
  config.base_channels = read_size(ddconfig, "ch", config.base_channels);
  config.channel_multipliers = read_sizes(ddconfig, "ch_mult", {1, 2, 4});
  if (config.num_levels() != kNumLevels) {
    ddconfig.fail_value("ch_mult", fmt::format("must have {} entries: the latent has one frame for "
                                               "{} mel frames",
                                               kNumLevels, kMelFramesPerLatent));
  }
  const int64_t extra_blocks = ddconfig.get<int64_t>("num_res_blocks", 2);
  if (extra_blocks < 0 || extra_blocks > kMaxBlocks) {
    ddconfig.fail_value("num_res_blocks", fmt::format("must lie between 0 and {}", kMaxBlocks));
  }
  config.blocks_per_level = extra_blocks + 1;
  return config;
}

AudioDecoderWeights bind_audio_decoder(const AudioDecoderConfig& config,
                                       loader::WeightBinder& binder) {
  AudioDecoderWeights weights;
  auto statistics = binder.scope("per_channel_statistics.");
  weights.mean = statistics.take("mean-of-means", {config.format.token_channels()});
  weights.stddev = statistics.take("std-of-means", {config.format.token_channels()});

  const auto decoder = binder.scope("decoder.");
  const int64_t top = config.num_levels() - 1;
  int64_t in = config.channels(top);
  weights.conv_in = take_conv(decoder.scope("conv_in."), config.format.latent_channels, in, 3);
  weights.mid1 = take_block(decoder.scope("mid.block_1."), in, in);
  weights.mid2 = take_block(decoder.scope("mid.block_2."), in, in);
  weights.levels.resize(config.num_levels());
  for (int64_t level = top; level >= 0; --level) {
    const auto scope = decoder.scope(fmt::format("up.{}.", level));
    const int64_t out = config.channels(level);
    for (int64_t i = 0; i < config.blocks_per_level; ++i) {
      weights.levels[level].blocks.push_back(
          take_block(scope.scope(fmt::format("block.{}.", i)), in, out));
      in = out;
    }
    if (level > 0)
      weights.levels[level].upsample = take_conv(scope.scope("upsample.conv."), in, in, 3);
  }
  weights.conv_out = take_conv(decoder.scope("conv_out."), in, kChannels, 3);
  return weights;
}

AudioDecoder AudioDecoder::from_checkpoint(
    const std::shared_ptr<const loader::Checkpoint>& checkpoint, at::ScalarType dtype,
    at::Device device, const loader::LoadArena& load) {
  const loader::ConfigReader root(checkpoint->config(), checkpoint->path().string() + ": config");
  AudioDecoder decoder;
  decoder.config_ = AudioDecoderConfig::from_json(root.object("audio_vae"));
  // The other statistics belong to the training of the transformer.
  decoder.arena_ = std::make_shared<loader::WeightArena>(
      checkpoint,
      std::vector<std::string>{"audio_vae.decoder.", "audio_vae.per_channel_statistics."}, dtype,
      device, std::vector<std::string>{"mean-of-stds", "channel"});
  loader::WeightBinder binder(*decoder.arena_);
  auto scope = binder.scope("audio_vae.");
  decoder.weights_ = bind_audio_decoder(decoder.config_, scope);
  binder.finish();
  if (!device.is_meta()) load(*decoder.arena_);
  return decoder;
}

void AudioDecoder::check_latent(const at::Tensor& latent) const {
  const AudioFormat& format = config_.format;
  const bool fits = latent.dim() == 4 && latent.size(1) == format.latent_channels &&
                    latent.size(2) > 0 && latent.size(3) == format.latent_bins();
  if (fits) return;
  fail(ErrorKind::input,
       fmt::format("an audio latent is {}, expected [batch, {}, frames, {}]",
                   shape_text(latent.sizes().vec()), format.latent_channels, format.latent_bins()));
}

at::Tensor AudioDecoder::denormalize(const at::Tensor& latent) const {
  check_latent(latent);
  // The statistics count channel and frequency together, as a token does.
  const std::vector<int64_t> shape = {1, config_.format.latent_channels, 1,
                                      config_.format.latent_bins()};
  return latent.to(weights_.mean.options()) * weights_.stddev.view(shape) +
         weights_.mean.view(shape);
}

at::Tensor AudioDecoder::conv_in(const at::Tensor& denormalized) const {
  return causal_conv(denormalized, weights_.conv_in);
}

at::Tensor AudioDecoder::decode(const at::Tensor& latent) const {
  at::Tensor x = conv_in(denormalize(latent));  // [B, C_top, T, latent_bins]
  x = run_block(x, weights_.mid1);
  x = run_block(x, weights_.mid2);
  for (auto level = weights_.levels.rbegin(); level != weights_.levels.rend(); ++level) {
    for (const ResnetBlock& block : level->blocks) x = run_block(x, block);
    if (level->upsample.weight.defined()) x = run_upsample(x, level->upsample);
  }
  return causal_conv(norm_silu(x), weights_.conv_out);  // [B, 2, 4T-3, mel_bins]
}

}  // namespace flotilla::audio
