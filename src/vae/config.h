// Configuration of the convolutional video VAE (CausalVideoAutoencoder of LTX-2.0 and 2.3), read
// strictly from the checkpoint: a block or value that this program does not implement is an error
// that names it. Source: ltx_core/model/video_vae/model_configurator.py.
// Next: blocks.h (the layers), encoder.h, decoder.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "diffusion/latent_size.h"
#include "loader/checkpoint.h"
#include "loader/config_reader.h"

namespace flotilla::vae {

enum class SpatialPadding { zeros, reflect };

enum class BlockKind {
  residual,        // res_x: a row of residual layers
  residual_widen,  // res_x_y: one residual layer that changes the channels
  strided,         // encoder compress_*, compress_all_x_y: one strided convolution
  fold,            // encoder compress_*_res: space and time folded into channels
  unfold,          // decoder compress_*: channels unfolded into space and time
};

struct BlockConfig {
  BlockKind kind = BlockKind::residual;
  std::string name;                        // as in the file
  int64_t num_layers = 1;                  // residual
  int64_t multiplier = 1;                  // how the channels change
  bool skip = false;                       // unfold: the input is added, unfolded too
  std::array<int64_t, 3> stride{1, 1, 1};  // frames, height, width
};

struct EncoderConfig {
  int64_t pixel_channels = 3;
  int64_t latent_channels = 128;
  int64_t patch_size = 4;
  int64_t variance_channels = 1;  // what conv_out computes beside the means
  SpatialPadding padding = SpatialPadding::zeros;
  std::vector<BlockConfig> blocks;

  // `vae`: the "vae" object of the checkpoint's configuration, flat or with an "encoder" inside.
  static EncoderConfig from_json(const loader::ConfigReader& vae);
  diffusion::ScaleFactors scale() const;
};

struct DecoderConfig {
  int64_t pixel_channels = 3;
  int64_t latent_channels = 128;
  int64_t patch_size = 4;
  int64_t base_channels = 128;  // at the picture's end
  bool causal = false;
  SpatialPadding padding = SpatialPadding::reflect;
  std::vector<BlockConfig> blocks;  // from the latent to the picture: the file's order reversed

  static DecoderConfig from_json(const loader::ConfigReader& vae);
  diffusion::ScaleFactors scale() const;
  // Channels behind the first convolution.
  int64_t bottleneck_channels() const;
};

// Where the VAE lies in a file: with the prefix "vae." in a monolith, or with bare names in a file
// of its own; the configuration under "vae" or, in such a file, on the top.
struct VaeLocation {
  std::string prefix;
  loader::ConfigReader config;
};
// Errors (ErrorKind::input): no VAE in the file, no configuration of one.
VaeLocation locate_vae(const loader::Checkpoint& checkpoint);

}  // namespace flotilla::vae
