// Finding the ffmpeg program and asking what it can do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla::io {

// The first executable file `name` in a PATH-like list ("/usr/local/bin:/usr/bin"); relative
// entries and empty ones are passed over.
std::optional<std::filesystem::path> find_program(std::string_view name,
                                                  std::string_view search_path);

struct Ffmpeg {
  std::filesystem::path path;
  std::string version;    // "5.1.9-0+deb12u1"
  bool has_h264 = false;  // encoder libx264
  bool has_aac = false;

  bool can_write_mp4() const { return has_h264 && has_aac; }
};

// Asks the program at `path`, or the first one of `search_path` (the app passes PATH) when `path`
// is empty; nothing when there is none. Takes a few tenths of a second. Errors: ErrorKind::machine,
// when a program is there but is not a working ffmpeg.
std::optional<Ffmpeg> find_ffmpeg(const std::filesystem::path& path, std::string_view search_path);

// The same for job after job: a program that is still the same file is asked once.
class FfmpegFinder {
 public:
  // Errors: those of find_ffmpeg(); such a program is asked again.
  std::optional<Ffmpeg> find(std::string_view search_path);

 private:
  // Of the last answer.
  std::optional<Ffmpeg> known_;
  std::filesystem::file_time_type changed_;
  uintmax_t bytes_ = 0;
};

}  // namespace flotilla::io
