#include "io/mp4_writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "io/mp4_info.h"
#include "io/yuv.h"

namespace flotilla::io {
namespace {

// An encoder that takes nothing for so long hangs (a dead network disk).
constexpr double kStallS = 120;
// Closing writes the last frames and, for the index in front, the file once more.
constexpr double kCloseS = 600;
// One argument of a program has at most 128 KiB on Linux.
constexpr size_t kMaxCommentBytes = 100'000;
constexpr int kAacSamplesPerPacket = 1024;
constexpr std::string_view kAudioBitRate = "192k";

// "file:" keeps ffmpeg from reading a colon as a protocol and a dash as an option.
std::string file_argument(const std::filesystem::path& path) { return "file:" + path.string(); }

std::vector<std::string> base_command(const VideoWriterOptions& options) {
  return {options.ffmpeg.string(), "-nostdin", "-hide_banner", "-v", "error", "-y"};
}

void append(std::vector<std::string>& out, std::vector<std::string> more) {
  out.insert(out.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

bool is_disk_full(const Process& process) {
  return process.errors().find("No space left") != std::string::npos;
}

std::vector<std::string> color_tags() {
  return {"-color_range",
          "tv",
          "-colorspace",
          "bt709",
          "-color_primaries",
          "bt709",
          "-color_trc",
          "bt709",
          "-chroma_sample_location",
          "center"};
}

}  // namespace

Mp4Writer::Mp4Writer(const VideoWriterOptions& options)
    : options_(options),
      order_(options.format),
      file_(options.path, options.overwrite),
      yuv_(static_cast<size_t>(yuv420_frame_bytes(options.format.width, options.format.height))) {
  if (options_.comment.size() > kMaxCommentBytes) {
    log::warn("io",
              "the job has {} bytes of YAML; more than {} are not stored in the mp4 file's comment",
              options_.comment.size(), kMaxCommentBytes);
    options_.comment.clear();
  }
  if (options_.audio) silent_.emplace(options_.path, options_.overwrite);
  encoder_.emplace(video_command(), /*read_output=*/false);
}

std::vector<std::string> Mp4Writer::video_command() const {
  const VideoFormat& format = options_.format;
  std::vector<std::string> command = base_command(options_);
  append(command, {"-f", "rawvideo", "-pix_fmt", "yuv420p", "-video_size",
                   fmt::format("{}x{}", format.width, format.height), "-framerate",
                   fmt::format("{}/{}", format.rate.numerator, format.rate.denominator)});
  append(command, color_tags());
  append(command, {"-i", "pipe:0", "-an", "-c:v", "libx264", "-preset", options_.preset, "-crf",
                   std::to_string(options_.crf), "-pix_fmt", "yuv420p", "-threads",
                   std::to_string(options_.threads)});
  append(command, color_tags());
  if (!silent_)
    append(command, {"-movflags", "+faststart", "-metadata", "comment=" + options_.comment});
  append(command, {"-f", "mp4", file_argument(silent_ ? silent_->temporary() : file_.temporary())});
  return command;
}

std::vector<std::string> Mp4Writer::mux_command(const std::filesystem::path& video) const {
  std::vector<std::string> command = base_command(options_);
  append(command, {"-i",
                   file_argument(video),
                   "-f",
                   "wav",
                   "-i",
                   "pipe:0",
                   "-map",
                   "0:v:0",
                   "-map",
                   "1:a:0",
                   "-c:v",
                   "copy",
                   "-c:a",
                   "aac",
                   "-b:a",
                   std::string(kAudioBitRate),
                   "-movflags",
                   "+faststart",
                   "-metadata",
                   "comment=" + options_.comment,
                   "-f",
                   "mp4",
                   file_argument(file_.temporary())});
  return command;
}

void Mp4Writer::fail_process(Process& process) const {
  process.close_input();
  const std::optional<int> status = process.wait(kStallS);
  if (is_disk_full(process)) {
    fail(ErrorKind::output,
         fmt::format("cannot write \"{}\": {}", options_.path.string(), std::strerror(ENOSPC)));
  }
  fail(ErrorKind::output,
       fmt::format("cannot write \"{}\": ffmpeg ended with {}: {}", options_.path.string(),
                   status ? describe_status(*status) : "no status", process.errors()));
}

void Mp4Writer::end_process(Process& process) const {
  process.close_input();
  const std::optional<int> status = process.wait(kCloseS);
  if (!status) {
    fail(ErrorKind::output,
         fmt::format("cannot write \"{}\": ffmpeg was still running {:g} s after its last input",
                     options_.path.string(), kCloseS));
  }
  // With "-v error" any word is bad news; some versions report a full disk only so.
  if (*status != 0 || is_disk_full(process)) fail_process(process);
}

void Mp4Writer::push(const FrameBatch& batch) {
  order_.accept(batch);
  for (int64_t i = 0; i < batch.num_frames; ++i) {
    rgb_to_yuv420(batch.frame(i), options_.format.width, options_.format.height, yuv_);
    if (!encoder_->write(yuv_, kStallS)) fail_process(*encoder_);
  }
}

void Mp4Writer::set_audio(AudioTrack track) {
  FLOTILLA_ASSERT(options_.audio);
  track_ = std::move(track);
}

void Mp4Writer::finish() {
  order_.check_complete();
  FLOTILLA_ASSERT(options_.audio == track_.has_value());
  end_process(*encoder_);
  encoder_.reset();
  if (track_) mux();
  verify();
  file_.commit();
}

void Mp4Writer::mux() {
  *track_ = fit_audio(std::move(*track_), options_.format);
  Process muxer(mux_command(silent_->temporary()), /*read_output=*/false);
  if (!muxer.write(wav_bytes(*track_), kStallS)) fail_process(muxer);
  end_process(muxer);
  silent_.reset();
}

void Mp4Writer::verify() const {
  const VideoFormat& format = options_.format;
  const auto check = [&](bool good, std::string_view what, auto found, auto expected) {
    if (good) return;
    fail(ErrorKind::output, fmt::format("\"{}\" was written wrongly: {} is {}, not {}",
                                        options_.path.string(), what, found, expected));
  };
  const Mp4Info info = with_context(fmt::format("reading \"{}\" back", options_.path.string()),
                                    [&] { return read_mp4_info(file_.temporary()); });
  check(info.video.has_value(), "number of video streams", 0, 1);
  const TrackInfo& video = *info.video;
  check(video.codec == "avc1", "video codec", video.codec, "avc1");
  check(video.width == format.width, "width", video.width, format.width);
  check(video.height == format.height, "height", video.height, format.height);
  check(video.num_samples == format.num_frames, "number of frames", video.num_samples,
        format.num_frames);
  // Each frame may be off by one tick where the rate does not divide the timescale.
  const double duration_s =
      static_cast<double>(video.duration) / static_cast<double>(video.timescale);
  const double tick_s =
      static_cast<double>(format.num_frames) / static_cast<double>(video.timescale);
  check(std::abs(duration_s - format.duration_s()) <= tick_s, "duration", duration_s,
        format.duration_s());
  check(info.index_in_front, "index in front", false, true);
  if (video.color) {
    const ColorTags& color = *video.color;
    check(color.matrix == 1 && color.primaries == 1 && color.transfer == 1 && !color.full_range,
          "colour matrix", color.matrix, "BT.709, limited range");
  }
  check(info.audio.has_value() == options_.audio, "sound stream", info.audio.has_value(),
        options_.audio);
  if (!options_.audio) return;
  check(info.audio->channels == track_->channels, "number of sound channels", info.audio->channels,
        track_->channels);
  // The last packet is filled up, and the first one is an encoder's delay that the edit list takes
  // off.
  const double slack_s = 2.0 * kAacSamplesPerPacket / static_cast<double>(track_->sample_rate);
  check(std::abs(info.audio->shown_s - format.duration_s()) <= slack_s, "duration of the sound",
        info.audio->shown_s, format.duration_s());
}

}  // namespace flotilla::io
