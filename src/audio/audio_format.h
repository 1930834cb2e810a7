// Sizes and rates of sound on its way through the model: audio latent frames -> mel frames ->
// samples. The numbers come from config.audio_vae of the checkpoint. How many latent frames a video
// has: diffusion::audio_latent_size(pixels, latent_channels, latent_bins(), timing()). Next:
// audio_vae.h (latent -> mel), vocoder.h (mel -> samples).
#pragma once

#include <cstdint>

#include "diffusion/latent_size.h"
#include "loader/config_reader.h"

namespace flotilla::audio {

// Both stereo channels of every checkpoint; a vocoder takes kChannels * mel bins as its input rows.
constexpr int64_t kChannels = 2;
// Mel frames that one latent frame stands for; the first one stands for a single mel frame.
constexpr int64_t kMelFramesPerLatent = 4;

struct AudioFormat {
  int64_t sample_rate = 16000;  // Hz, of the sound that the mel spectrogram describes
  int64_t hop_length = 160;     // samples between two mel frames
  int64_t mel_bins = 64;
  int64_t latent_channels = 8;

  // Reads `audio_vae` = config.audio_vae. Errors (ErrorKind::input): a missing or impossible value;
  // a spectrogram that looks into the future ("causal": false), which shifts every latent in time.
  static AudioFormat from_json(const loader::ConfigReader& audio_vae);

  // Frequency rows of a latent [B, latent_channels, T, latent_bins].
  int64_t latent_bins() const { return mel_bins / kMelFramesPerLatent; }
  // Channels of an audio token, which is one latent frame.
  int64_t token_channels() const { return latent_channels * latent_bins(); }
  double mel_frames_per_second() const;
  diffusion::AudioTiming timing() const;
};

// Mel frames that the decoder makes of `latent_frames`: 4 T - 3 (the causal decoder drops the first
// of every doubled pair).
int64_t num_mel_frames(int64_t latent_frames);

}  // namespace flotilla::audio
