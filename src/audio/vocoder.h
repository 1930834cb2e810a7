// Mel spectrogram -> sound. One of two families, which the checkpoint tells: LTX-2.0 (HiFi-GAN, 24
// kHz) or LTX-2.3 (16 kHz, then bandwidth extension to 48 kHz). Always float32, weights and
// arithmetic, whatever the rest of the program runs in: half precision is audible after a hundred
// convolutions.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "audio/audio_vae.h"
#include "audio/bandwidth.h"
#include "audio/generator.h"
#include "audio/vocoder_config.h"

namespace flotilla::audio {

struct Waveform {
  at::Tensor samples;  // [B, 2, N] float in [-1, 1], on the vocoder's device
  int64_t sample_rate = 0;
};

struct VocoderWeights {
  GeneratorWeights generator;
  std::optional<BandwidthWeights> bandwidth;
};

// Binds names as they follow the one leading "vocoder.".
VocoderWeights bind_vocoder(const VocoderConfig& config, const loader::WeightBinder& binder);

class Vocoder {
 public:
  // Loads "vocoder." onto `device`. On at::kMeta only configuration, names and shapes are checked.
  // Errors: ErrorKind::input.
  static Vocoder from_checkpoint(const std::shared_ptr<const loader::Checkpoint>& checkpoint,
                                 at::Device device,
                                 const loader::LoadArena& load = loader::load_alone);

  // log-mel [B, 2, frames, 64], any floating dtype -> sound of config().num_samples(frames).
  // Errors (ErrorKind::input): a spectrogram of another shape.
  Waveform synthesize(const at::Tensor& mel) const;
  // The generator alone: [B, 2, frames, 64] -> [B, 2, frames * samples_per_frame] at
  // config().generator_sample_rate; the whole of LTX-2.0, the first half of LTX-2.3.
  at::Tensor generate(const at::Tensor& mel) const;

  const VocoderConfig& config() const { return config_; }
  const VocoderWeights& weights() const { return weights_; }

 private:
  VocoderConfig config_;
  std::shared_ptr<loader::WeightArena> arena_;
  VocoderWeights weights_;
};

// Refuses (ErrorKind::input) a vocoder that would play the decoder's spectrograms at the wrong
// speed or cannot read them. For models from different files; once, after loading.
void check_fits(const AudioDecoderConfig& decoder, const VocoderConfig& vocoder);

// Latent [B, C, T, latent_bins] -> sound.
Waveform decode_audio(const AudioDecoder& decoder, const Vocoder& vocoder,
                      const at::Tensor& latent);

}  // namespace flotilla::audio
