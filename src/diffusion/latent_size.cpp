#include "diffusion/latent_size.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"

namespace flotilla::diffusion {
namespace {

// Reports `value` unless it is `step` * k + `offset` with a k that gives a positive value.
void check_multiple(std::vector<std::string>& problems, const char* name, int64_t value,
                    int64_t step, int64_t offset) {
  const int64_t smallest = offset > 0 ? offset : step;
  if (value >= smallest && (value - offset) % step == 0) return;
  const int64_t below = value < smallest ? smallest : (value - offset) / step * step + offset;
  const std::string rule =
      offset == 0 ? fmt::format("a multiple of {}", step) : fmt::format("{} k + {}", step, offset);
  const std::string nearest =
      value < smallest ? fmt::format("{}", smallest) : fmt::format("{} or {}", below, below + step);
  problems.push_back(fmt::format("{} ({}) must be {}; use {}", name, value, rule, nearest));
}

}  // namespace

double AudioTiming::latents_per_second() const {
  return static_cast<double>(sample_rate) / static_cast<double>(hop_length) /
         static_cast<double>(downsample);
}

VideoLatentSize video_latent_size(const VideoPixelSize& pixels, int64_t channels,
                                  const ScaleFactors& scale) {
  std::vector<std::string> problems;
  check_multiple(problems, "width", pixels.width, scale.width, 0);
  check_multiple(problems, "height", pixels.height, scale.height, 0);
  check_multiple(problems, "num_frames", pixels.frames, scale.time, 1);
  if (!problems.empty()) fail(ErrorKind::config, fmt::format("{}", fmt::join(problems, "; ")));
  return {.batch = 1,
          .channels = channels,
          .frames = (pixels.frames - 1) / scale.time + 1,
          .height = pixels.height / scale.height,
          .width = pixels.width / scale.width};
}

VideoPixelSize decoded_size(const VideoLatentSize& latent, double frame_rate,
                            const ScaleFactors& scale) {
  return {.frames = (latent.frames - 1) * scale.time + 1,
          .height = latent.height * scale.height,
          .width = latent.width * scale.width,
          .frame_rate = frame_rate};
}

AudioLatentSize audio_latent_size(const VideoPixelSize& pixels, int64_t channels, int64_t mel_bins,
                                  const AudioTiming& timing) {
  if (!(pixels.frame_rate > 0.0) || !std::isfinite(pixels.frame_rate)) {
    fail(ErrorKind::config, fmt::format("frame_rate ({}) must be positive", pixels.frame_rate));
  }
  const double seconds = static_cast<double>(pixels.frames) / pixels.frame_rate;
  // nearbyint in the default rounding mode: half to even, as the models were trained.
  const double frames = std::nearbyint(seconds * timing.latents_per_second());
  if (!(frames >= 1.0)) {
    fail(ErrorKind::config,
         fmt::format("{} frames at {} frames per second are too short for sound; use more frames",
                     pixels.frames, pixels.frame_rate));
  }
  return {.batch = 1,
          .channels = channels,
          .frames = static_cast<int64_t>(frames),
          .mel_bins = mel_bins};
}

}  // namespace flotilla::diffusion
