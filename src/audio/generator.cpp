#include "audio/generator.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "audio/audio_format.h"

namespace flotilla::audio {
namespace {

constexpr int64_t kOuterKernel = 7;   // of the first and the last convolution
constexpr double kSlope = 0.1;        // leaky ReLU inside the network
constexpr double kFinalSlope = 0.01;  // and before the last convolution

Conv1d take_conv(loader::WeightBinder binder, std::vector<int64_t> shape, int64_t out,
                 bool bias = true) {
  Conv1d conv;
  conv.weight = binder.take("weight", std::move(shape));
  if (bias) conv.bias = binder.take("bias", {out});
  return conv;
}

ResidualBlock take_block(const loader::WeightBinder& binder, const GeneratorConfig& config,
                         int64_t channels, size_t index) {
  const int64_t kernel = config.block_kernels[index];
  ResidualBlock block;
  for (size_t i = 0; i < block.dilated.size(); ++i) {
    const auto scope = [&](std::string_view list) {
      return binder.scope(fmt::format("{}.{}.", list, i));
    };
    block.dilations[i] = config.block_dilations[index][i];
    block.dilated[i] = take_conv(scope("convs1"), {channels, channels, kernel}, channels);
    block.plain[i] = take_conv(scope("convs2"), {channels, channels, kernel}, channels);
    if (config.family == GeneratorFamily::hifi_gan) continue;
    block.before_dilated[i] = bind_snake(scope("acts1"), channels);
    block.before_plain[i] = bind_snake(scope("acts2"), channels);
  }
  return block;
}

// Same length: an odd kernel, padded alike on both sides.
at::Tensor conv_same(const at::Tensor& x, const Conv1d& conv, int64_t dilation = 1) {
  const int64_t padding = (conv.weight.size(2) - 1) * dilation / 2;
  return at::conv1d(x, conv.weight, conv.bias, /*stride=*/1, padding, dilation);
}

at::Tensor activate(GeneratorFamily family, const at::Tensor& x, const AntiAliasedSnake& snake,
                    double slope = kSlope) {
  return family == GeneratorFamily::amp ? apply_snake(x, snake) : at::leaky_relu(x, slope);
}

at::Tensor run_block(GeneratorFamily family, at::Tensor x, const ResidualBlock& block) {
  for (size_t i = 0; i < block.dilated.size(); ++i) {
    at::Tensor y = activate(family, x, block.before_dilated[i]);
    y = conv_same(y, block.dilated[i], block.dilations[i]);
    y = activate(family, y, block.before_plain[i]);
    x = conv_same(y, block.plain[i]).add_(x);
  }
  return x;
}

// One level: rate times `rate`, channels halved, then the mean of the residual blocks.
at::Tensor run_level(const GeneratorConfig& config, const GeneratorWeights& weights, at::Tensor x,
                     size_t level) {
  const Conv1d& up = weights.upsamplers[level];
  const int64_t rate = config.upsample_rates[level];
  if (config.family == GeneratorFamily::hifi_gan) x = at::leaky_relu(x, kSlope);
  x = at::conv_transpose1d(x, up.weight, up.bias, rate, /*padding=*/(up.weight.size(2) - rate) / 2);
  const std::vector<ResidualBlock>& blocks = weights.blocks[level];
  at::Tensor sum = run_block(config.family, x, blocks.front());
  for (size_t i = 1; i < blocks.size(); ++i) sum.add_(run_block(config.family, x, blocks[i]));
  return sum.div_(static_cast<double>(blocks.size()));
}

}  // namespace

void GeneratorWeights::prepare(GeneratorFamily family) {
  if (family == GeneratorFamily::hifi_gan) return;
  for (auto& level : blocks) {
    for (ResidualBlock& block : level) {
      for (AntiAliasedSnake& snake : block.before_dilated) snake.prepare();
      for (AntiAliasedSnake& snake : block.before_plain) snake.prepare();
    }
  }
  final_snake.prepare();
}

GeneratorWeights bind_generator(const GeneratorConfig& config, loader::WeightBinder binder) {
  GeneratorWeights weights;
  const int64_t first = config.initial_channels, last = config.channels(config.num_levels());
  weights.conv_pre = take_conv(binder.scope("conv_pre."),
                               {first, kChannels * kVocoderMelBins, kOuterKernel}, first);
  for (int64_t level = 0; level < config.num_levels(); ++level) {
    const int64_t in = config.channels(level), out = config.channels(level + 1);
    weights.upsamplers.push_back(take_conv(binder.scope(fmt::format("ups.{}.", level)),
                                           {in, out, config.upsample_kernels[level]}, out));
    // The file numbers the blocks through all levels.
    auto& blocks = weights.blocks.emplace_back();
    for (size_t i = 0; i < config.block_kernels.size(); ++i) {
      const size_t number = level * config.block_kernels.size() + i;
      blocks.push_back(
          take_block(binder.scope(fmt::format("resblocks.{}.", number)), config, out, i));
    }
  }
  if (config.family == GeneratorFamily::amp)
    weights.final_snake = bind_snake(binder.scope("act_post."), last);
  weights.conv_post = take_conv(binder.scope("conv_post."), {kChannels, last, kOuterKernel},
                                kChannels, config.final_bias);
  return weights;
}

at::Tensor run_generator(const GeneratorConfig& config, const GeneratorWeights& weights,
                         const at::Tensor& mel) {
  at::Tensor x =
      conv_same(mel.flatten(1, 2), weights.conv_pre);  // [B, 2*bins, frames] -> [B, C, frames]
  for (size_t level = 0; level < weights.upsamplers.size(); ++level)
    x = run_level(config, weights, x, level);
  x = activate(config.family, x, weights.final_snake, kFinalSlope);
  x = conv_same(x, weights.conv_post);  // [B, 2, samples]
  switch (config.final_activation) {
    case FinalActivation::tanh:
      return x.tanh_();
    case FinalActivation::clamp:
      return x.clamp_(-1, 1);
    case FinalActivation::none:
      break;
  }
  return x;
}

}  // namespace flotilla::audio
