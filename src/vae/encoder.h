// The video VAE's encoder: pixels to a normalised latent, for image and keyframe conditioning.
// Source: ltx_core/model/video_vae/video_vae.py (VideoEncoder).
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "loader/weight_arena.h"
#include "vae/blocks.h"
#include "vae/config.h"
#include "vae/statistics.h"

namespace flotilla::vae {

struct EncoderWeights {
  Conv conv_in;
  std::vector<Block> blocks;
  Conv conv_out;
  LatentStatistics statistics;
};
// `binder`: the scope that holds "encoder." and "per_channel_statistics.".
EncoderWeights bind_encoder(const EncoderConfig& config, loader::WeightBinder& binder);

class VideoEncoder {
 public:
  // Reads the encoder of a monolith or of a VAE file. On device meta the file is checked and
  // nothing is read. Errors (ErrorKind::input): configuration, missing, extra or mis-shaped
  // tensors. Collective if `load` is.
  static VideoEncoder from_checkpoint(std::shared_ptr<const loader::Checkpoint> checkpoint,
                                      at::ScalarType dtype, at::Device device,
                                      const loader::LoadArena& load = loader::load_alone);

  // pixels: [B, 3, F, H, W] in [-1, 1] -> [B, C, 1 + (F-1)/time, H/height, W/width], normalised, in
  // the weights' dtype. Nothing is cropped: errors (ErrorKind::config) for a frame count that is
  // not 1 + k*time, or sides that do not divide.
  at::Tensor encode(const at::Tensor& pixels) const;

  const EncoderConfig& config() const { return config_; }
  diffusion::ScaleFactors scale() const { return config_.scale(); }
  const LatentStatistics& statistics() const { return weights_.statistics; }
  int64_t weight_bytes() const { return arena_->bytes(); }

 private:
  VideoEncoder(EncoderConfig config, EncoderWeights weights,
               std::shared_ptr<const loader::WeightArena> arena);

  EncoderConfig config_;
  EncoderWeights weights_;
  std::shared_ptr<const loader::WeightArena> arena_;
};

}  // namespace flotilla::vae
