#include "audio/audio_format.h"

#include "audio/config_values.h"

namespace flotilla::audio {
namespace {

// The same number stands in up to three places; the first one that is there counts.
int64_t read_mel_bins(const loader::ConfigReader& audio_vae, const loader::ConfigReader& ddconfig) {
  if (ddconfig.has("mel_bins")) return read_size(ddconfig, "mel_bins");
  if (audio_vae.has("preprocessing") && audio_vae.object("preprocessing").has("mel")) {
    const auto mel = audio_vae.object("preprocessing").object("mel");
    if (mel.has("n_mel_channels")) return read_size(mel, "n_mel_channels");
  }
  if (audio_vae.has("variables")) return read_size(audio_vae.object("variables"), "mel_bins");
  fail(ErrorKind::input, fmt::format("{}: \"mel_bins\" is missing", ddconfig.where()));
}

}  // namespace

AudioFormat AudioFormat::from_json(const loader::ConfigReader& audio_vae) {
  const auto params = audio_vae.object("model").object("params");
  const auto ddconfig = params.object("ddconfig");
  AudioFormat format;
  format.sample_rate = read_size(params, "sampling_rate", format.sample_rate);
  format.latent_channels = read_size(ddconfig, "z_channels", format.latent_channels);
  format.mel_bins = read_mel_bins(audio_vae, ddconfig);
  if (format.mel_bins % kMelFramesPerLatent != 0) {
    fail(ErrorKind::input, fmt::format("{}: {} mel bins: must be a multiple of {}",
                                       ddconfig.where(), format.mel_bins, kMelFramesPerLatent));
  }
  if (audio_vae.has("preprocessing") && audio_vae.object("preprocessing").has("stft")) {
    const auto stft = audio_vae.object("preprocessing").object("stft");
    format.hop_length = read_size(stft, "hop_length", format.hop_length);
    stft.require<bool>("causal", {true});
  }
  return format;
}

double AudioFormat::mel_frames_per_second() const {
  return static_cast<double>(sample_rate) / static_cast<double>(hop_length);
}

diffusion::AudioTiming AudioFormat::timing() const {
  return {.sample_rate = sample_rate,
          .hop_length = hop_length,
          .downsample = kMelFramesPerLatent,
          .causal = true};
}

int64_t num_mel_frames(int64_t latent_frames) {
  FLOTILLA_ASSERT(latent_frames > 0);
  return kMelFramesPerLatent * latent_frames - (kMelFramesPerLatent - 1);
}

}  // namespace flotilla::audio
