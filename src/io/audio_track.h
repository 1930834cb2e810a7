// A sound track on its way to a file, and its WAV form.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/temp_file.h"
#include "io/frame_sink.h"

namespace flotilla::io {

struct AudioTrack {
  std::vector<float> samples;  // interleaved [num_samples, channels], -1..1
  int64_t channels = 2;
  int64_t sample_rate = 48000;

  int64_t num_samples() const { return static_cast<int64_t>(samples.size()) / channels; }
  double duration_s() const {
    return static_cast<double>(num_samples()) / static_cast<double>(sample_rate);
  }
};

// `waveform` float [channels, samples], any device. Errors: ErrorKind::non_finite.
AudioTrack make_audio_track(const at::Tensor& waveform, int64_t sample_rate);

// The track cut, or filled with silence at its end, to the exact duration of the video (nearest
// sample); which of the two, and by how much, goes to the log.
AudioTrack fit_audio(AudioTrack track, const VideoFormat& format);

// Little-endian 16-bit PCM, clipped at full scale, as the bytes of a WAV file.
// Errors: ErrorKind::output, when it does not fit into the 4 GiB of the format.
std::vector<uint8_t> wav_bytes(const AudioTrack& track);

// Writes the WAV file whole or not at all. Errors: ErrorKind::output.
void write_wav(const std::filesystem::path& path, const AudioTrack& track, bool overwrite);

}  // namespace flotilla::io
