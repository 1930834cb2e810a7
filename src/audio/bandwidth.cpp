#include "audio/bandwidth.h"

#include <ATen/ATen.h>

#include <cmath>

#include "audio/fir_bank.h"
#include "base/error.h"

namespace flotilla::audio {
namespace {

constexpr double kPi = 3.14159265358979323846;
// The resampler's filter: zero crossings a side, and its cut-off as a share of the Nyquist rate.
constexpr double kZeroCrossings = 6;
constexpr double kRolloff = 0.99;
constexpr double kMelFloor = 1e-5;

int64_t resample_width() { return static_cast<int64_t>(std::ceil(kZeroCrossings / kRolloff)); }

}  // namespace

at::Tensor make_resample_filter(int64_t ratio) {
  const int64_t width = resample_width();
  // In float throughout, as the reference does.
  at::Tensor time = at::arange(2 * width * ratio + 1, at::kFloat);
  time = (time / static_cast<double>(ratio) - static_cast<double>(width)) * kRolloff;
  const at::Tensor inside = time.clamp(-kZeroCrossings, kZeroCrossings);
  const at::Tensor window = at::cos(inside * kPi / kZeroCrossings / 2).square();
  return at::sinc(time) * window * kRolloff / static_cast<double>(ratio);
}

void BandwidthWeights::prepare(const BandwidthConfig& config) {
  generator.prepare(config.generator.family);
  const at::Tensor filter = make_resample_filter(config.ratio());
  const int64_t center = resample_width() * config.ratio();
  resample_bank = make_interpolation_bank(filter, config.ratio(), center).to(mel_basis.device());
}

BandwidthWeights bind_bandwidth(const BandwidthConfig& config, loader::WeightBinder binder) {
  const int64_t frequencies = config.fft_size / 2 + 1;
  auto spectrogram = binder.scope("mel_stft.");
  BandwidthWeights weights;
  weights.generator = bind_generator(config.generator, binder.scope("bwe_generator."));
  weights.forward_basis =
      spectrogram.take("stft_fn.forward_basis", {2 * frequencies, 1, config.fft_size});
  weights.mel_basis = spectrogram.take("mel_basis", {config.mel_bins, frequencies});
  return weights;
}

at::Tensor pad_to_hops(const BandwidthConfig& config, const at::Tensor& sound) {
  const int64_t remainder = sound.size(2) % config.hop_length;
  return remainder == 0 ? sound : at::constant_pad_nd(sound, {0, config.hop_length - remainder});
}

at::Tensor log_mel(const BandwidthConfig& config, const BandwidthWeights& weights,
                   const at::Tensor& sound) {
  FLOTILLA_ASSERT(sound.size(2) % config.hop_length == 0);
  const at::Tensor rows = sound.reshape({-1, 1, sound.size(2)});  // [B*2, 1, N]
  const at::Tensor padded = at::constant_pad_nd(rows, {config.fft_size - config.hop_length, 0});
  const at::Tensor spectrum =
      at::conv1d(padded, weights.forward_basis, {}, config.hop_length);  // [B*2, 2*F, frames]
  const auto parts = spectrum.chunk(2, 1);
  const at::Tensor magnitude = at::sqrt(parts[0].square() + parts[1].square());
  const at::Tensor mel = at::matmul(weights.mel_basis, magnitude).clamp_min_(kMelFloor).log_();
  return mel.view({sound.size(0), sound.size(1), config.mel_bins, mel.size(2)});
}

at::Tensor resample(const BandwidthConfig& config, const BandwidthWeights& weights,
                    const at::Tensor& sound) {
  const int64_t reach = weights.resample_bank.size(2) / 2;
  const at::Tensor held = at::replication_pad1d(sound, {reach, reach});
  const at::Tensor rows = held.reshape({-1, 1, held.size(2)});
  const at::Tensor phases = apply_fir_bank(rows, weights.resample_bank);  // [B*2, ratio, N]
  return phases.transpose(1, 2).reshape(
      {sound.size(0), sound.size(1), config.ratio() * sound.size(2)});
}

at::Tensor extend_bandwidth(const BandwidthConfig& config, const BandwidthWeights& weights,
                            const at::Tensor& sound) {
  const at::Tensor padded = pad_to_hops(config, sound);
  const at::Tensor residual =
      run_generator(config.generator, weights.generator, log_mel(config, weights, padded));
  const at::Tensor skip = resample(config, weights, padded);
  return (residual + skip).clamp_(-1, 1).slice(2, 0, config.ratio() * sound.size(2));
}

}  // namespace flotilla::audio
