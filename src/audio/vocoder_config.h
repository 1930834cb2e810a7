// Configuration of the vocoders, config.vocoder of a checkpoint. Two families: LTX-2.0, one
// HiFi-GAN generator (flat configuration), and LTX-2.3, a BigVGAN-like generator followed by
// bandwidth extension (nested "vocoder" and "bwe"). The entry "bwe" tells them apart.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "loader/config_reader.h"

namespace flotilla::audio {

// Mel bins a channel that every vocoder takes; no configuration entry names them.
constexpr int64_t kVocoderMelBins = 64;

enum class GeneratorFamily { hifi_gan, amp };
enum class FinalActivation { tanh, clamp, none };

// A network that turns mel frames into samples: transposed convolutions that raise the rate, each
// followed by the mean of several residual blocks.
struct GeneratorConfig {
  GeneratorFamily family = GeneratorFamily::hifi_gan;
  int64_t initial_channels = 1024;
  std::vector<int64_t> upsample_rates;
  std::vector<int64_t> upsample_kernels;
  std::vector<int64_t> block_kernels;                 // one residual block each, on every level
  std::vector<std::vector<int64_t>> block_dilations;  // three for each block
  FinalActivation final_activation = FinalActivation::tanh;
  bool final_bias = true;

  // Channels after `level` upsamplings: halved each time.
  int64_t channels(int64_t level) const { return initial_channels >> level; }
  int64_t num_levels() const { return static_cast<int64_t>(upsample_rates.size()); }
  int64_t samples_per_frame() const;
};

// Mel spectrogram of the low-rate sound, a second generator on it, and a resampled skip connection.
struct BandwidthConfig {
  GeneratorConfig generator;
  int64_t input_sample_rate = 16000;
  int64_t output_sample_rate = 48000;
  int64_t fft_size = 512;
  int64_t hop_length = 80;  // low-rate samples between two frames of that spectrogram
  int64_t mel_bins = kVocoderMelBins;

  int64_t ratio() const { return output_sample_rate / input_sample_rate; }
};

struct VocoderConfig {
  GeneratorConfig generator;
  int64_t generator_sample_rate = 24000;  // of the generator's own output
  std::optional<BandwidthConfig> bandwidth;

  // `vocoder` = config.vocoder. Errors (ErrorKind::input): missing or impossible values, and all
  // that is not implemented, by name.
  static VocoderConfig from_json(const loader::ConfigReader& vocoder);

  // Hz of the final sound.
  int64_t sample_rate() const;
  // Samples a channel of the final sound; `mel_frames` is num_mel_frames(latent frames).
  int64_t num_samples(int64_t mel_frames) const;
};

}  // namespace flotilla::audio
