#include "io/video_writer.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "io/mp4_writer.h"
#include "io/y4m_writer.h"

namespace flotilla::io {
namespace {

constexpr int kMaxCrf = 51;

void check_options(const VideoWriterOptions& options) {
  const VideoFormat& format = options.format;
  FLOTILLA_ASSERT(format.width > 0 && format.height > 0 && format.num_frames > 0);
  FLOTILLA_ASSERT(format.rate.numerator > 0 && format.rate.denominator > 0);
  if (format.width % 2 != 0 || format.height % 2 != 0) {
    fail(ErrorKind::config,
         fmt::format("video of {}x{}: 4:2:0 files need even sides", format.width, format.height));
  }
  if (options.crf < 0 || options.crf > kMaxCrf) {
    fail(ErrorKind::config, fmt::format("video crf {} is not in 0..{}", options.crf, kMaxCrf));
  }
}

}  // namespace

Container choose_container(const std::filesystem::path& path, bool ffmpeg_found) {
  const std::string extension = to_lower(path.extension().string());
  if (extension == ".y4m") return Container::y4m;
  if (extension == ".mp4") {
    if (ffmpeg_found) return Container::mp4;
    fail(ErrorKind::machine,
         fmt::format("output \"{}\": .mp4 needs the ffmpeg program with libx264 and aac, which was "
                     "not found; "
                     "install it, or write .y4m (uncompressed, sound in a .wav beside)",
                     path.string()));
  }
  fail(ErrorKind::config,
       fmt::format(
           "output \"{}\": \"{}\" files cannot be written; use .mp4 (H.264 and AAC{}) or .y4m "
           "(uncompressed, sound in a .wav beside)",
           path.string(), extension, ffmpeg_found ? "" : "; needs ffmpeg, which was not found"));
}

std::filesystem::path sound_path(const std::filesystem::path& video_path) {
  std::filesystem::path path = video_path;
  return path.replace_extension(".wav");
}

std::unique_ptr<VideoWriter> make_video_writer(const VideoWriterOptions& options) {
  check_options(options);
  if (choose_container(options.path, !options.ffmpeg.empty()) == Container::mp4) {
    return std::make_unique<Mp4Writer>(options);
  }
  return std::make_unique<Y4mWriter>(options);
}

}  // namespace flotilla::io
