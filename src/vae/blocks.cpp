#include "vae/blocks.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"

namespace flotilla::vae {
namespace {

using Stride = std::array<int64_t, 3>;

ResidualLayer bind_layer(int64_t in, int64_t out, loader::WeightBinder binder) {
  ResidualLayer layer;
  layer.conv1 = take_conv(binder, "conv1", in, out);
  layer.conv2 = take_conv(binder, "conv2", out, out);
  if (in != out) {
    layer.shortcut_norm_weight = binder.take("norm3.weight", {in});
    layer.shortcut_norm_bias = binder.take("norm3.bias", {in});
    layer.shortcut_weight = binder.take("conv_shortcut.weight", {out, in, 1, 1, 1});
    layer.shortcut_bias = binder.take("conv_shortcut.bias", {out});
  }
  return layer;
}

// Adds the layer's result to x, which is a sum that may still be open.
void apply_layer(const ResidualLayer& layer, ops::MapSum& x, const Borders& borders) {
  at::Tensor buffer = padded_norm_silu(x, borders, Keep::sum);
  ops::MapSum hidden = convolve_open(buffer, layer.conv1, borders);
  buffer.reset();
  buffer = padded_norm_silu(hidden, borders, Keep::nothing);
  hidden = {};
  hidden = convolve_open(buffer, layer.conv2, borders);
  buffer.reset();
  if (layer.shortcut_weight.defined()) {
    constexpr double kEpsilon = 1e-6;
    x.x = at::group_norm(x.x, 1, layer.shortcut_norm_weight, layer.shortcut_norm_bias, kEpsilon);
    x.x = at::conv3d(x.x, layer.shortcut_weight, layer.shortcut_bias);
  }
  x.update = std::move(hidden.x);
  x.bias = std::move(hidden.bias);
}

// [B, C, F*p, H*q, W*r] -> [B, F, H, W, C*p*q*r]: each p x q x r cell becomes channels.
at::Tensor fold_cells(const at::Tensor& x, const Stride& s) {
  const int64_t b = x.size(0), c = x.size(1);
  const int64_t f = x.size(2) / s[0], h = x.size(3) / s[1], w = x.size(4) / s[2];
  return x.reshape({b, c, f, s[0], h, s[1], w, s[2]})
      .permute({0, 2, 4, 6, 1, 3, 5, 7})
      .reshape({b, f, h, w, c * s[0] * s[1] * s[2]});
}

at::Tensor channels_first(const at::Tensor& x) { return x.permute({0, 4, 1, 2, 3}); }

at::Tensor apply_strided(const Block& block, at::Tensor x, const Borders& borders) {
  const at::Tensor buffer = padded(x, borders);
  x.reset();
  return convolve(buffer, block.conv, borders, block.config.stride);
}

// The mean over groups of folded channels is the skip connection. A halving of time first repeats
// the first frame, so that 1 + 2k frames become 1 + k; the repeat joins those of the border.
at::Tensor apply_fold(const Block& block, at::Tensor x, Borders borders) {
  const Stride& stride = block.config.stride;
  borders.extra_front = stride[0] - 1;
  const at::Tensor buffer = padded(x, borders);
  x.reset();
  const int64_t out = block.conv.weight.size(0) * stride[0] * stride[1] * stride[2];
  const at::Tensor frames = frames_of(buffer, borders, borders.front() - borders.extra_front);
  at::Tensor skip = fold_cells(frames, stride);  // [B, F, H, W, C*cells]
  skip = skip.unflatten(-1, {out, skip.size(-1) / out}).mean(-1);
  at::Tensor folded = fold_cells(convolve(buffer, block.conv, borders), stride);
  return channels_first(folded.add_(skip));
}

ops::MapSum apply_unfold(const Block& block, ops::MapSum x, const Borders& borders) {
  const bool has_skip = block.config.skip;
  at::Tensor buffer = padded(x, borders, has_skip ? Keep::sum : Keep::nothing);
  const at::Tensor skip = has_skip ? x.x : at::Tensor();
  x = {};
  const ops::MapSum wide = convolve_open(buffer, block.conv, borders);
  buffer.reset();
  // The frame in front of the first picture is dropped.
  return {
      ops::unfold_channels(wide, skip, {block.config.stride, block.config.stride[0] - 1}), {}, {}};
}

}  // namespace

Block bind_block(const BlockConfig& config, int64_t in, int64_t out, loader::WeightBinder& binder) {
  const int64_t cells = config.stride[0] * config.stride[1] * config.stride[2];
  Block block;
  block.config = config;
  switch (config.kind) {
    case BlockKind::residual:
      for (int64_t i = 0; i < config.num_layers; ++i) {
        block.layers.push_back(bind_layer(in, out, binder.scope(fmt::format("res_blocks.{}.", i))));
      }
      break;
    case BlockKind::residual_widen:
      block.layers.push_back(bind_layer(in, out, binder));
      break;
    // A strided convolution is the block itself in the file, the others hold one named "conv".
    case BlockKind::strided:
      block.conv = {binder.take("conv.weight", {out, in, 3, 3, 3}),
                    binder.take("conv.bias", {out})};
      break;
    case BlockKind::fold:
      block.conv = take_conv(binder, "conv", in, out / cells);
      break;
    case BlockKind::unfold:
      block.conv = take_conv(binder, "conv", in, out * cells);
      break;
  }
  return block;
}

ops::MapSum apply_block(const Block& block, ops::MapSum x, const Borders& borders) {
  switch (block.config.kind) {
    case BlockKind::residual:
    case BlockKind::residual_widen:
      for (const ResidualLayer& layer : block.layers) apply_layer(layer, x, borders);
      return x;
    case BlockKind::strided:
      add_up(x);
      return {apply_strided(block, std::move(x.x), borders), {}, {}};
    case BlockKind::fold:
      add_up(x);
      return {apply_fold(block, std::move(x.x), borders), {}, {}};
    case BlockKind::unfold:
      return apply_unfold(block, std::move(x), borders);
  }
  fail(ErrorKind::internal, "a VAE block of an unknown kind");
}

at::Tensor apply_block(const Block& block, at::Tensor x, const Borders& borders) {
  ops::MapSum map = apply_block(block, ops::MapSum{std::move(x), {}, {}}, borders);
  return add_up(map);
}

at::Tensor patchify_pixels(const at::Tensor& pixels, int64_t patch_size) {
  const int64_t b = pixels.size(0), c = pixels.size(1), f = pixels.size(2), p = patch_size;
  const int64_t h = pixels.size(3) / p, w = pixels.size(4) / p;
  return channels_first(pixels.reshape({b, c, f, h, p, w, p})
                            .permute({0, 2, 3, 5, 1, 6, 4})  // b f h w c x y
                            .reshape({b, f, h, w, c * p * p}));
}

at::Tensor unpatchify_pixels(const at::Tensor& patches, int64_t patch_size) {
  return ops::unpatchify({patches, {}, {}}, patch_size);
}

}  // namespace flotilla::vae
