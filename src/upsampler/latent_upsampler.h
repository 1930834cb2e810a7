// The spatial latent upsampler between stage 1 and stage 2: x2 by pixel shuffle, or a ratio such as
// x1.5 by pixel shuffle and a blurred stride. It works on plain latents; upsample_video() takes and
// gives normalised ones. Source: ltx_core/model/upsampler.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "loader/checkpoint.h"
#include "loader/config_reader.h"
#include "loader/weight_arena.h"

namespace flotilla::upsampler {

// A scale as up / down: 2 is 2/1, 1.5 is 3/2.
struct Ratio {
  int64_t up = 2;
  int64_t down = 1;
};

struct UpsamplerConfig {
  int64_t channels = 128;  // of the latent
  int64_t mid_channels = 512;
  int64_t blocks_per_stage = 4;
  bool rational = false;  // the resampler of a ratio, with its blur, also where down is 1
  Ratio ratio;

  // `reader`: the top of the upsampler file's configuration. Errors (ErrorKind::input) name every
  // value that is not implemented: temporal upsampling, 2-D layers, other scales.
  static UpsamplerConfig from_json(const loader::ConfigReader& reader);
  // Cells that `cells` become along one axis; an odd count under 3/2 is rounded up.
  int64_t upsampled(int64_t cells) const { return (cells * ratio.up - 1) / ratio.down + 1; }
};

struct ConvWeights {
  at::Tensor weight;
  at::Tensor bias;
};
struct NormWeights {
  at::Tensor weight;
  at::Tensor bias;
};
struct ResidualWeights {
  ConvWeights conv1, conv2;
  NormWeights norm1, norm2;
};
struct UpsamplerWeights {
  ConvWeights initial_conv;
  NormWeights initial_norm;
  std::vector<ResidualWeights> before;
  ConvWeights upsample;  // one picture at a time: [up*up*mid, mid, 3, 3]
  at::Tensor blur;       // rational only: [1, 1, 5, 5]
  std::vector<ResidualWeights> after;
  ConvWeights final_conv;
};
UpsamplerWeights bind_upsampler(const UpsamplerConfig& config, loader::WeightBinder& binder);

class LatentUpsampler {
 public:
  // On device meta the file is checked and nothing is read. Errors (ErrorKind::input):
  // configuration, missing, extra or mis-shaped tensors. Collective if `load`
  // is.
  static LatentUpsampler from_checkpoint(std::shared_ptr<const loader::Checkpoint> checkpoint,
                                         at::ScalarType dtype, at::Device device,
                                         const loader::LoadArena& load = loader::load_alone);

  // latent: [B, C, F, H, W], not normalised -> [B, C, F, upsampled(H), upsampled(W)].
  // Errors (ErrorKind::config): other channels.
  at::Tensor forward(const at::Tensor& latent) const;

  const UpsamplerConfig& config() const { return config_; }
  int64_t weight_bytes() const { return arena_->bytes(); }

 private:
  LatentUpsampler(UpsamplerConfig config, UpsamplerWeights weights,
                  std::shared_ptr<const loader::WeightArena> arena);

  UpsamplerConfig config_;
  UpsamplerWeights weights_;
  std::shared_ptr<const loader::WeightArena> arena_;
};

// A normalised latent upsampled: un-normalise, model, normalise. mean, std: [C], the video VAE's
// statistics per channel. Computed in the upsampler's dtype.
at::Tensor upsample_video(const LatentUpsampler& upsampler, const at::Tensor& latent,
                          const at::Tensor& mean, const at::Tensor& std);

}  // namespace flotilla::upsampler
