// The building blocks of the video VAE's encoder and decoder: residual layers, folding of space and
// time into channels, and its inverse. Activations: [B, C, F, H, W], memory layout as in conv.h.
// Blocks take their input by value and let go of it as early as they can: at full resolution one
// activation is most of the memory. Source: ltx_core/model/video_vae/{resnet,sampling}.py.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "loader/weight_arena.h"
#include "vae/config.h"
#include "vae/conv.h"

namespace flotilla::vae {

struct ResidualLayer {
  Conv conv1;
  Conv conv2;
  // Only where the channels change: group norm (one group), then a 1x1x1 convolution of the input.
  at::Tensor shortcut_norm_weight;
  at::Tensor shortcut_norm_bias;
  at::Tensor shortcut_weight;  // [out, in, 1, 1, 1]
  at::Tensor shortcut_bias;
};

struct Block {
  BlockConfig config;
  std::vector<ResidualLayer> layers;  // residual, residual_widen
  Conv conv;                          // strided, fold, unfold
};

// Binds one block of `in` channels that leaves `out`; the binder's scope ends in "<index>.".
Block bind_block(const BlockConfig& config, int64_t in, int64_t out, loader::WeightBinder& binder);

// Encoder: halves the axes that the block names; frames must be 1 + even before a halving of time.
// Decoder: doubles them, and drops the first frame after a doubling of time.
ops::MapSum apply_block(const Block& block, ops::MapSum x, const Borders& borders);
at::Tensor apply_block(const Block& block, at::Tensor x, const Borders& borders);

// Pixels to channels and back: [B, C, F, H, W] <-> [B, C*p*p, F, H/p, W/p]; in the channel index
// the offset in x is slower than the offset in y.
at::Tensor patchify_pixels(const at::Tensor& pixels, int64_t patch_size);
at::Tensor unpatchify_pixels(const at::Tensor& patches, int64_t patch_size);

}  // namespace flotilla::vae
