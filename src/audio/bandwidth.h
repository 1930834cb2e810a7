// Bandwidth extension of the LTX-2.3 vocoder: from the low-rate sound its log-mel spectrogram, from
// that a residual at the high rate, plus the low-rate sound itself, resampled.
// Source: the reference's vocoder.py (VocoderWithBWE, MelSTFT, UpSample1d with a Hann window).
#pragma once

#include <ATen/core/Tensor.h>

#include "audio/generator.h"
#include "audio/vocoder_config.h"
#include "loader/weight_arena.h"

namespace flotilla::audio {

struct BandwidthWeights {
  GeneratorWeights generator;
  at::Tensor forward_basis;  // [2 * (fft_size / 2 + 1), 1, fft_size]: cosines, then sines, windowed
  at::Tensor mel_basis;      // [mel_bins, fft_size / 2 + 1]
  at::Tensor resample_bank;  // computed by prepare(): the file has none

  void prepare(const BandwidthConfig& config);
};

// Binds "bwe_generator." and "mel_stft.".
BandwidthWeights bind_bandwidth(const BandwidthConfig& config, loader::WeightBinder binder);

// Low-rate taps of the resampler for `ratio`, float on the CPU: a sinc of six zero crossings a side
// under a Hann window, as torchaudio's resample makes it. -> [2 * 7 * ratio + 1]
at::Tensor make_resample_filter(int64_t ratio);

// The sound, zeros appended up to a whole number of hops.
at::Tensor pad_to_hops(const BandwidthConfig& config, const at::Tensor& sound);
// sound [B, 2, N], N a multiple of the hop -> natural log of the mel spectrogram
// [B, 2, mel_bins, N / hop]; a frame sees nothing later than its own hop.
at::Tensor log_mel(const BandwidthConfig& config, const BandwidthWeights& weights,
                   const at::Tensor& sound);
// [B, 2, N] -> [B, 2, ratio * N].
at::Tensor resample(const BandwidthConfig& config, const BandwidthWeights& weights,
                    const at::Tensor& sound);

// The whole: low-rate sound [B, 2, N] float -> [B, 2, ratio * N], clipped to [-1, 1].
at::Tensor extend_bandwidth(const BandwidthConfig& config, const BandwidthWeights& weights,
                            const at::Tensor& sound);

}  // namespace flotilla::audio
