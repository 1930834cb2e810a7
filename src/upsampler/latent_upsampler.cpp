#include "upsampler/latent_upsampler.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/error.h"

namespace flotilla::upsampler {
namespace {

constexpr int64_t kNormGroups = 32;
constexpr double kNormEpsilon = 1e-5;
constexpr int64_t kBlurSize = 5;

struct KnownScale {
  double scale;
  Ratio ratio;
};
constexpr KnownScale kRationalScales[] = {
    {0.75, {3, 4}}, {1.5, {3, 2}}, {2.0, {2, 1}}, {4.0, {4, 1}}};

Ratio read_ratio(const loader::ConfigReader& reader, bool rational) {
  const double scale = reader.get<double>("spatial_scale", 2.0);
  if (!rational) {
    // The plain pixel shuffle doubles, whatever the entry says.
    reader.require<double>("spatial_scale", {2.0});
    return {2, 1};
  }
  for (const KnownScale& known : kRationalScales) {
    if (scale == known.scale) return known.ratio;
  }
  reader.fail_value("spatial_scale", "is not implemented; implemented: 0.75, 1.5, 2, 4");
}

int64_t read_size(const loader::ConfigReader& reader, const std::string& key, int64_t otherwise) {
  const int64_t value = reader.get<int64_t>(key, otherwise);
  if (value < 1) reader.fail_value(key, "must be at least 1");
  return value;
}

ConvWeights take_conv(loader::WeightBinder& binder, const std::string& name, int64_t in,
                      int64_t out, int64_t dims) {
  std::vector<int64_t> shape{out, in};
  shape.insert(shape.end(), static_cast<size_t>(dims), 3);
  return {binder.take(name + ".weight", shape), binder.take(name + ".bias", {out})};
}

NormWeights take_norm(loader::WeightBinder& binder, const std::string& name, int64_t channels) {
  return {binder.take(name + ".weight", {channels}), binder.take(name + ".bias", {channels})};
}

std::vector<ResidualWeights> take_stage(const UpsamplerConfig& config, loader::WeightBinder& binder,
                                        const std::string& name) {
  std::vector<ResidualWeights> stage;
  for (int64_t i = 0; i < config.blocks_per_stage; ++i) {
    loader::WeightBinder scope = binder.scope(fmt::format("{}.{}.", name, i));
    const int64_t mid = config.mid_channels;
    stage.push_back({.conv1 = take_conv(scope, "conv1", mid, mid, 3),
                     .conv2 = take_conv(scope, "conv2", mid, mid, 3),
                     .norm1 = take_norm(scope, "norm1", mid),
                     .norm2 = take_norm(scope, "norm2", mid)});
  }
  return stage;
}

at::Tensor conv3d(const at::Tensor& x, const ConvWeights& conv) {
  return at::conv3d(x, conv.weight, conv.bias, /*stride=*/1, /*padding=*/1);
}

at::Tensor group_norm(const at::Tensor& x, const NormWeights& norm) {
  return at::group_norm(x, kNormGroups, norm.weight, norm.bias, kNormEpsilon);
}

at::Tensor residual(const at::Tensor& x, const ResidualWeights& weights) {
  at::Tensor hidden = group_norm(conv3d(x, weights.conv1), weights.norm1);
  at::silu_(hidden);
  hidden = group_norm(conv3d(hidden, weights.conv2), weights.norm2);
  hidden.add_(x);
  return at::silu_(hidden);
}

// x: [N, C, H, W]; each channel by itself.
at::Tensor blur_and_stride(const at::Tensor& x, const at::Tensor& kernel, int64_t stride) {
  if (stride == 1) return x;
  const int64_t channels = x.size(1);
  return at::conv2d(x, kernel.expand({channels, 1, kBlurSize, kBlurSize}), {}, stride,
                    kBlurSize / 2,
                    /*dilation=*/1, channels);
}

at::Tensor upsample_pictures(const at::Tensor& x, const UpsamplerConfig& config,
                             const UpsamplerWeights& weights) {
  const int64_t batch = x.size(0), frames = x.size(2);
  at::Tensor pictures = x.transpose(1, 2).flatten(0, 1);  // [B*F, C, H, W]
  pictures = at::conv2d(pictures, weights.upsample.weight, weights.upsample.bias, 1, 1);
  pictures = at::pixel_shuffle(pictures, config.ratio.up);
  pictures = blur_and_stride(pictures, weights.blur, config.ratio.down);
  return pictures.unflatten(0, {batch, frames}).transpose(1, 2).contiguous();
}

}  // namespace

UpsamplerConfig UpsamplerConfig::from_json(const loader::ConfigReader& reader) {
  reader.require<std::string>("_class_name", {"LatentUpsampler"});
  reader.require<int64_t>("dims", {3});
  reader.require<bool>("spatial_upsample", {true});
  reader.require<bool>("temporal_upsample", {false});
  UpsamplerConfig config;
  config.channels = read_size(reader, "in_channels", config.channels);
  config.mid_channels = read_size(reader, "mid_channels", config.mid_channels);
  if (config.mid_channels % kNormGroups != 0) {
    reader.fail_value("mid_channels", fmt::format("must be a multiple of {}", kNormGroups));
  }
  config.blocks_per_stage = read_size(reader, "num_blocks_per_stage", config.blocks_per_stage);
  config.rational = reader.get<bool>("rational_resampler", false);
  config.ratio = read_ratio(reader, config.rational);
  return config;
}

UpsamplerWeights bind_upsampler(const UpsamplerConfig& config, loader::WeightBinder& binder) {
  const int64_t mid = config.mid_channels;
  UpsamplerWeights weights;
  weights.initial_conv = take_conv(binder, "initial_conv", config.channels, mid, 3);
  weights.initial_norm = take_norm(binder, "initial_norm", mid);
  weights.before = take_stage(config, binder, "res_blocks");
  const std::string upsample = config.rational ? "upsampler.conv" : "upsampler.0";
  weights.upsample = take_conv(binder, upsample, mid, config.ratio.up * config.ratio.up * mid, 2);
  if (config.rational) {
    weights.blur = binder.take("upsampler.blur_down.kernel", {1, 1, kBlurSize, kBlurSize});
  }
  weights.after = take_stage(config, binder, "post_upsample_res_blocks");
  weights.final_conv = take_conv(binder, "final_conv", mid, config.channels, 3);
  return weights;
}

LatentUpsampler::LatentUpsampler(UpsamplerConfig config, UpsamplerWeights weights,
                                 std::shared_ptr<const loader::WeightArena> arena)
    : config_(config), weights_(std::move(weights)), arena_(std::move(arena)) {}

LatentUpsampler LatentUpsampler::from_checkpoint(
    std::shared_ptr<const loader::Checkpoint> checkpoint, at::ScalarType dtype, at::Device device,
    const loader::LoadArena& load) {
  return with_context("latent upsampler", [&] {
    const std::string where = checkpoint->path().filename().string() + ": config";
    const auto config =
        UpsamplerConfig::from_json(loader::ConfigReader(checkpoint->config(), where));
    auto arena = std::make_shared<loader::WeightArena>(checkpoint, std::vector<std::string>{""},
                                                       dtype, device);
    loader::WeightBinder binder(*arena);
    UpsamplerWeights weights = bind_upsampler(config, binder);
    binder.finish();
    if (!device.is_meta()) load(*arena);
    return LatentUpsampler(config, std::move(weights), std::move(arena));
  });
}

at::Tensor LatentUpsampler::forward(const at::Tensor& latent) const {
  FLOTILLA_ASSERT(latent.dim() == 5);
  if (latent.size(1) != config_.channels) {
    fail(ErrorKind::config, fmt::format("the latent upsampler takes {} channels, not {}",
                                        config_.channels, latent.size(1)));
  }
  const at::Tensor& like = weights_.initial_conv.weight;
  at::Tensor x = conv3d(latent.to(like.device(), like.scalar_type()), weights_.initial_conv);
  x = at::silu(group_norm(x, weights_.initial_norm));
  for (const ResidualWeights& block : weights_.before) x = residual(x, block);
  x = upsample_pictures(x, config_, weights_);
  for (const ResidualWeights& block : weights_.after) x = residual(x, block);
  return conv3d(x, weights_.final_conv);
}

at::Tensor upsample_video(const LatentUpsampler& upsampler, const at::Tensor& latent,
                          const at::Tensor& mean, const at::Tensor& std) {
  const auto per_channel = [](const at::Tensor& values, const at::Tensor& like) {
    return values.to(like.options()).view({1, -1, 1, 1, 1});
  };
  const at::Tensor plain = latent * per_channel(std, latent) + per_channel(mean, latent);
  const at::Tensor big = upsampler.forward(plain);
  return (big - per_channel(mean, big)) / per_channel(std, big);
}

}  // namespace flotilla::upsampler
