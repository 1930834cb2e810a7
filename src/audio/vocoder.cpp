#include "audio/vocoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::audio {
namespace {

// Switches TF32 off for as long as it lives. cuDNN rounds float convolutions to ten bits of
// mantissa by default, which here would be the half precision that the vocoder must not have.
class FullPrecision {
 public:
  FullPrecision() {
    auto& context = at::globalContext();
    for (size_t i = 0; i < std::size(kOps); ++i) {
      before_[i] = context.float32Precision(at::Float32Backend::CUDA, kOps[i]);
      context.setFloat32Precision(at::Float32Backend::CUDA, kOps[i], at::Float32Precision::IEEE);
    }
  }
  ~FullPrecision() {
    for (size_t i = 0; i < std::size(kOps); ++i) {
      at::globalContext().setFloat32Precision(at::Float32Backend::CUDA, kOps[i], before_[i]);
    }
  }
  FullPrecision(const FullPrecision&) = delete;
  FullPrecision& operator=(const FullPrecision&) = delete;

 private:
  static constexpr at::Float32Op kOps[] = {at::Float32Op::CONV, at::Float32Op::MATMUL};
  at::Float32Precision before_[std::size(kOps)] = {};
};

void check_mel(const at::Tensor& mel) {
  const bool fits = mel.dim() == 4 && mel.size(1) == kChannels && mel.size(2) > 0 &&
                    mel.size(3) == kVocoderMelBins;
  if (fits) return;
  fail(ErrorKind::input, fmt::format("a mel spectrogram is {}, expected [batch, {}, frames, {}]",
                                     shape_text(mel.sizes().vec()), kChannels, kVocoderMelBins));
}

}  // namespace

VocoderWeights bind_vocoder(const VocoderConfig& config, const loader::WeightBinder& binder) {
  VocoderWeights weights;
  // With bandwidth extension the generator is a part with a name of its own.
  weights.generator =
      bind_generator(config.generator, config.bandwidth ? binder.scope("vocoder.") : binder);
  if (config.bandwidth) weights.bandwidth = bind_bandwidth(*config.bandwidth, binder);
  return weights;
}

Vocoder Vocoder::from_checkpoint(const std::shared_ptr<const loader::Checkpoint>& checkpoint,
                                 at::Device device, const loader::LoadArena& load) {
  const loader::ConfigReader root(checkpoint->config(), checkpoint->path().string() + ": config");
  Vocoder vocoder;
  vocoder.config_ = VocoderConfig::from_json(root.object("vocoder"));
  // Nothing here goes back from a spectrum to a sound.
  vocoder.arena_ = std::make_shared<loader::WeightArena>(
      checkpoint, std::vector<std::string>{"vocoder."}, at::kFloat, device,
      std::vector<std::string>{"mel_stft.stft_fn.inverse_basis"});
  const loader::WeightBinder binder(*vocoder.arena_);
  vocoder.weights_ = bind_vocoder(vocoder.config_, binder.scope("vocoder."));
  binder.finish();
  if (device.is_meta()) return vocoder;
  load(*vocoder.arena_);
  vocoder.weights_.generator.prepare(vocoder.config_.generator.family);
  if (vocoder.config_.bandwidth) vocoder.weights_.bandwidth->prepare(*vocoder.config_.bandwidth);
  return vocoder;
}

at::Tensor Vocoder::generate(const at::Tensor& mel) const {
  check_mel(mel);
  const FullPrecision full_precision;
  const at::Tensor input = mel.to(weights_.generator.conv_pre.weight.options());
  return run_generator(config_.generator, weights_.generator, input.transpose(2, 3));
}

Waveform Vocoder::synthesize(const at::Tensor& mel) const {
  at::Tensor sound = generate(mel);
  if (config_.bandwidth) {
    const FullPrecision full_precision;
    sound = extend_bandwidth(*config_.bandwidth, *weights_.bandwidth, sound);
  }
  return {sound, config_.sample_rate()};
}

void check_fits(const AudioDecoderConfig& decoder, const VocoderConfig& vocoder) {
  const AudioFormat& format = decoder.format;
  if (format.mel_bins != kVocoderMelBins) {
    fail(ErrorKind::input, fmt::format("the audio VAE makes {} mel bins, the vocoder takes {}",
                                       format.mel_bins, kVocoderMelBins));
  }
  // Both sides as samples: frames * sample_rate / hop of the one equals those of the other.
  if (vocoder.generator.samples_per_frame() * format.sample_rate !=
      vocoder.generator_sample_rate * format.hop_length) {
    fail(ErrorKind::input,
         fmt::format("the audio VAE makes {} mel frames a second, the vocoder {} samples a mel "
                     "frame at {} Hz: "
                     "the sound would play at the wrong speed",
                     format.mel_frames_per_second(), vocoder.generator.samples_per_frame(),
                     vocoder.generator_sample_rate));
  }
}

Waveform decode_audio(const AudioDecoder& decoder, const Vocoder& vocoder,
                      const at::Tensor& latent) {
  return vocoder.synthesize(decoder.decode(latent));
}

}  // namespace flotilla::audio
