#include "io/audio_track.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "io/file_bytes.h"

namespace flotilla::io {
namespace {

constexpr size_t kWavHeaderBytes = 44;
constexpr int64_t kBytesPerSample = 2;

void append(std::vector<uint8_t>& out, std::string_view text) {
  out.insert(out.end(), text.begin(), text.end());
}

void append_le(std::vector<uint8_t>& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<uint8_t>(value >> (8 * i)));
}

}  // namespace

AudioTrack make_audio_track(const at::Tensor& waveform, int64_t sample_rate) {
  FLOTILLA_ASSERT(waveform.dim() == 2 && waveform.size(0) >= 1 && sample_rate > 0);
  const at::Tensor interleaved =
      waveform.detach().to(at::kCPU, at::kFloat).t().contiguous();  // [samples, channels]
  if (!interleaved.isfinite().all().item<bool>()) {
    fail(ErrorKind::non_finite, "the sound has NaN or infinite samples");
  }
  const float* data = interleaved.data_ptr<float>();
  return {std::vector<float>(data, data + interleaved.numel()), waveform.size(0), sample_rate};
}

AudioTrack fit_audio(AudioTrack track, const VideoFormat& format) {
  const auto wanted = static_cast<int64_t>(
      std::llround(format.duration_s() * static_cast<double>(track.sample_rate)));
  const int64_t difference = track.num_samples() - wanted;
  if (difference == 0) return track;
  const double seconds =
      static_cast<double>(std::abs(difference)) / static_cast<double>(track.sample_rate);
  log::info("io", "sound of {:.3f} s {} {:.3f} s to fit the video of {:.3f} s", track.duration_s(),
            difference > 0 ? "cut by" : "filled up with silence of", seconds, format.duration_s());
  track.samples.resize(static_cast<size_t>(wanted * track.channels), 0.0F);
  return track;
}

std::vector<uint8_t> wav_bytes(const AudioTrack& track) {
  const uint64_t data_bytes = track.samples.size() * kBytesPerSample;
  if (data_bytes > std::numeric_limits<uint32_t>::max() - kWavHeaderBytes) {
    fail(ErrorKind::output,
         fmt::format("{:.0f} s of sound do not fit into a WAV file (4 GiB)", track.duration_s()));
  }
  const auto channels = static_cast<uint64_t>(track.channels);
  const auto rate = static_cast<uint64_t>(track.sample_rate);
  std::vector<uint8_t> out;
  out.reserve(kWavHeaderBytes + data_bytes);
  append(out, "RIFF");
  append_le(out, kWavHeaderBytes - 8 + data_bytes, 4);
  append(out, "WAVEfmt ");
  append_le(out, 16, 4);
  append_le(out, 1, 2);  // PCM
  append_le(out, channels, 2);
  append_le(out, rate, 4);
  append_le(out, rate * channels * kBytesPerSample, 4);
  append_le(out, channels * kBytesPerSample, 2);
  append_le(out, 8 * kBytesPerSample, 2);
  append(out, "data");
  append_le(out, data_bytes, 4);
  for (const float sample : track.samples) {
    const long level = std::lround(std::clamp(sample, -1.0F, 1.0F) * 32767.0F);
    append_le(out, static_cast<uint16_t>(static_cast<int16_t>(level)), kBytesPerSample);
  }
  return out;
}

void write_wav(const std::filesystem::path& path, const AudioTrack& track, bool overwrite) {
  PendingFile file(path, overwrite);
  write_bytes(file.temporary(), path, wav_bytes(track));
  file.commit();
}

}  // namespace flotilla::io
