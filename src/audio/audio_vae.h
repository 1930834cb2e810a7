// The decoder half of the audio VAE: normalised latents -> log-mel spectrogram. A residual 2-D
// convolution network over (time, frequency), causal in time: a frame never sees later ones.
// Formulas: the reference's audio_vae.py, resnet.py, upsample.py. Next: vocoder.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "audio/audio_format.h"
#include "loader/weight_arena.h"

namespace flotilla::audio {

struct AudioDecoderConfig {
  AudioFormat format;
  int64_t base_channels = 128;
  // Channels of level i are base_channels * channel_multipliers[i]; level 0 has the full
  // resolution. Always three levels: two doublings make the four mel frames of a latent frame.
  std::vector<int64_t> channel_multipliers;
  int64_t blocks_per_level = 3;

  // `audio_vae` = config.audio_vae. Errors (ErrorKind::input): attention, group norm, another
  // causal axis, another number of levels and whatever else is not implemented, by name.
  static AudioDecoderConfig from_json(const loader::ConfigReader& audio_vae);
  int64_t channels(int64_t level) const { return base_channels * channel_multipliers[level]; }
  int64_t num_levels() const { return static_cast<int64_t>(channel_multipliers.size()); }
};

struct Conv2d {
  at::Tensor weight;  // [out, in, kernel, kernel]
  at::Tensor bias;    // [out]
};

struct ResnetBlock {
  Conv2d conv1, conv2;
  Conv2d shortcut;  // 1 x 1, undefined where the channels stay the same
};

struct UpLevel {
  std::vector<ResnetBlock> blocks;
  Conv2d upsample;  // undefined on level 0
};

struct AudioDecoderWeights {
  at::Tensor mean, stddev;  // [latent_channels * latent_bins], channel slow
  Conv2d conv_in, conv_out;
  ResnetBlock mid1, mid2;
  std::vector<UpLevel> levels;
};

// Binds names as they follow "audio_vae.".
AudioDecoderWeights bind_audio_decoder(const AudioDecoderConfig& config,
                                       loader::WeightBinder& binder);

class AudioDecoder {
 public:
  // Loads "audio_vae.decoder." and "audio_vae.per_channel_statistics." in `dtype` onto `device`.
  // On at::kMeta only configuration, names and shapes are checked. Errors: ErrorKind::input.
  static AudioDecoder from_checkpoint(const std::shared_ptr<const loader::Checkpoint>& checkpoint,
                                      at::ScalarType dtype, at::Device device,
                                      const loader::LoadArena& load = loader::load_alone);

  // latent [B, latent_channels, T, latent_bins], any floating dtype and device ->
  // log-mel [B, 2, 4T-3, mel_bins] in the dtype of the weights.
  // Errors (ErrorKind::input): a latent of another shape.
  at::Tensor decode(const at::Tensor& latent) const;

  // The first two steps of decode(), for tests: statistics undone, then the first convolution.
  at::Tensor denormalize(const at::Tensor& latent) const;
  at::Tensor conv_in(const at::Tensor& denormalized) const;

  const AudioDecoderConfig& config() const { return config_; }
  const AudioFormat& format() const { return config_.format; }

 private:
  void check_latent(const at::Tensor& latent) const;

  AudioDecoderConfig config_;
  std::shared_ptr<loader::WeightArena> arena_;
  AudioDecoderWeights weights_;
};

}  // namespace flotilla::audio
