#include "io/image_resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/image_reader.h"
#include "io/subprocess.h"

namespace flotilla::io {
namespace {

constexpr int kMaxCrf = 51;
constexpr double kTimeLimitS = 120;

void check_image(const at::Tensor& image) {
  FLOTILLA_ASSERT(image.dim() == 3 && image.size(2) == 3 && image.scalar_type() == at::kByte);
  FLOTILLA_ASSERT(image.size(0) > 0 && image.size(1) > 0);
}

ProcessResult run_ffmpeg(const std::filesystem::path& ffmpeg, std::vector<std::string> options,
                         std::span<const uint8_t> input) {
  std::vector<std::string> argv{ffmpeg.string(), "-nostdin", "-hide_banner", "-v", "error"};
  argv.insert(argv.end(), options.begin(), options.end());
  ProcessResult result = run_process(argv, input, kTimeLimitS);
  if (result.status != 0 || result.output.empty()) {
    fail(ErrorKind::machine,
         fmt::format("image re-compression with \"{}\" failed ({}): {}", ffmpeg.string(),
                     describe_status(result.status), result.errors));
  }
  return result;
}

}  // namespace

at::Tensor resize_and_center_crop(const at::Tensor& image, int64_t height, int64_t width) {
  check_image(image);
  FLOTILLA_ASSERT(height > 0 && width > 0);
  const auto source_height = static_cast<double>(image.size(0));
  const auto source_width = static_cast<double>(image.size(1));
  const double scale = std::max(static_cast<double>(height) / source_height,
                                static_cast<double>(width) / source_width);
  // Rounded up, so that neither side can fall short of the target.
  const auto scaled_height = static_cast<int64_t>(std::ceil(source_height * scale));
  const auto scaled_width = static_cast<int64_t>(std::ceil(source_width * scale));
  at::Tensor pixels = image.to(at::kFloat).permute({2, 0, 1}).unsqueeze(0);  // [1, 3, H, W]
  pixels = at::upsample_bilinear2d(pixels, {scaled_height, scaled_width}, /*align_corners=*/false);
  pixels = pixels.narrow(2, (scaled_height - height) / 2, height)
               .narrow(3, (scaled_width - width) / 2, width);
  return (pixels / 127.5 - 1.0).unsqueeze(2).contiguous();  // [1, 3, 1, height, width]
}

at::Tensor recompress_image(const at::Tensor& image, int crf, const std::filesystem::path& ffmpeg) {
  check_image(image);
  if (crf < 0 || crf > kMaxCrf) {
    fail(ErrorKind::config,
         fmt::format("image crf {} is not in 0..{} (0: no re-compression)", crf, kMaxCrf));
  }
  if (crf == 0 || std::min(image.size(0), image.size(1)) < 2) return image;
  if (ffmpeg.empty()) {
    fail(
        ErrorKind::machine,
        fmt::format(
            "image re-compression at crf {} needs the ffmpeg program, which was not found; install "
            "it, or set the image's crf to 0",
            crf));
  }
  const int64_t height = image.size(0) / 2 * 2;
  const int64_t width = image.size(1) / 2 * 2;
  const at::Tensor input = image.narrow(0, 0, height).narrow(1, 0, width).contiguous();
  const std::span<const uint8_t> bytes(input.data_ptr<uint8_t>(),
                                       static_cast<size_t>(input.numel()));
  // Bilinear conversion in both directions without more flags gives the bytes of the reference
  // (PyAV).
  const ProcessResult encoded =
      run_ffmpeg(ffmpeg, {"-f",          "rawvideo",
                          "-pix_fmt",    "rgb24",
                          "-video_size", fmt::format("{}x{}", width, height),
                          "-framerate",  "1",
                          "-i",          "pipe:0",
                          "-vf",         "scale=flags=bilinear,format=yuv420p",
                          "-frames:v",   "1",
                          "-c:v",        "libx264",
                          "-preset",     "veryfast",
                          "-crf",        std::to_string(crf),
                          "-threads",    "1",
                          "-f",          "h264",
                          "pipe:1"},
                 bytes);
  const ProcessResult decoded = run_ffmpeg(
      ffmpeg,
      {"-threads", "1", "-f", "h264", "-i", "pipe:0", "-vf", "scale=flags=bilinear,format=rgb24",
       "-frames:v", "1", "-f", "rawvideo", "pipe:1"},
      encoded.output);
  at::Tensor result = at::empty({height, width, 3}, at::kByte);
  if (decoded.output.size() != static_cast<size_t>(result.numel())) {
    fail(ErrorKind::machine, fmt::format("image re-compression gave {} bytes in place of {}",
                                         decoded.output.size(), result.numel()));
  }
  std::copy(decoded.output.begin(), decoded.output.end(), result.data_ptr<uint8_t>());
  return result;
}

at::Tensor load_conditioning_image(const std::filesystem::path& path, int64_t height, int64_t width,
                                   int crf, const std::filesystem::path& ffmpeg) {
  const at::Tensor image = read_image(path);
  return with_context(fmt::format("image \"{}\"", path.string()), [&] {
    return resize_and_center_crop(recompress_image(image, crf, ffmpeg), height, width);
  });
}

}  // namespace flotilla::io
