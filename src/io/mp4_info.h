// Reading back what an mp4 file says about itself, to prove a file that ffmpeg has just written.
// Only the index ("moov" box) is read; boxes are those of ISO/IEC 14496-12.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace flotilla::io {

// Code points of ITU-T H.273; 1 is BT.709 in all three.
struct ColorTags {
  int primaries = 0;
  int transfer = 0;
  int matrix = 0;
  bool full_range = false;
};

struct TrackInfo {
  std::string codec;  // four letters of the sample entry: "avc1", "mp4a"
  int64_t width = 0;
  int64_t height = 0;
  int64_t channels = 0;
  int64_t sample_rate = 0;
  int64_t num_samples = 0;  // frames of video, packets of sound
  int64_t timescale = 0;    // ticks a second
  int64_t duration = 0;     // in ticks, sum over the samples
  double shown_s = 0;       // after the edit list, which takes off an encoder's delay
  std::optional<ColorTags> color;
};

struct Mp4Info {
  bool index_in_front = false;  // "moov" comes before "mdat": plays while it loads
  std::optional<TrackInfo> video;
  std::optional<TrackInfo> audio;
  std::string comment;  // "" when there is none; in our clips the job's YAML
};

// Errors: ErrorKind::input for a file that is not an mp4 or has no readable index.
Mp4Info read_mp4_info(const std::filesystem::path& path);

}  // namespace flotilla::io
