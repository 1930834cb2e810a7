#include "io/ffmpeg.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "io/subprocess.h"

namespace flotilla::io {
namespace fs = std::filesystem;
namespace {

constexpr double kTimeLimitS = 30;

std::string ask(const fs::path& program, const std::string& option) {
  const ProcessResult result =
      run_process({program.string(), "-hide_banner", option}, {}, kTimeLimitS);
  if (result.status != 0) {
    fail(ErrorKind::machine,
         fmt::format("\"{}\" is not a working ffmpeg ({}): {}", program.string(),
                     describe_status(result.status), result.errors));
  }
  return std::string(result.output.begin(), result.output.end());
}

}  // namespace

std::optional<fs::path> find_program(std::string_view name, std::string_view search_path) {
  while (!search_path.empty()) {
    const size_t colon = search_path.find(':');
    const fs::path folder(search_path.substr(0, colon));
    search_path =
        colon == std::string_view::npos ? std::string_view() : search_path.substr(colon + 1);
    if (!folder.is_absolute()) continue;
    const fs::path candidate = folder / name;
    std::error_code ignored;
    if (fs::is_regular_file(candidate, ignored) && ::access(candidate.c_str(), X_OK) == 0)
      return candidate;
  }
  return std::nullopt;
}

std::optional<Ffmpeg> find_ffmpeg(const fs::path& path, std::string_view search_path) {
  const std::optional<fs::path> program = path.empty() ? find_program("ffmpeg", search_path) : path;
  if (!program) return std::nullopt;
  const std::string banner = ask(*program, "-version");
  constexpr std::string_view kStart = "ffmpeg version ";
  if (!banner.starts_with(kStart)) {
    fail(ErrorKind::machine, fmt::format("\"{}\" is not ffmpeg: it says \"{}\"", program->string(),
                                         excerpt(banner, 60)));
  }
  const std::string encoders = ask(*program, "-encoders");
  return Ffmpeg{
      *program, banner.substr(kStart.size(), banner.find(' ', kStart.size()) - kStart.size()),
      encoders.find(" libx264 ") != std::string::npos, encoders.find(" aac ") != std::string::npos};
}

std::optional<Ffmpeg> FfmpegFinder::find(std::string_view search_path) {
  const auto program = find_program("ffmpeg", search_path);
  if (!program) return std::nullopt;
  std::error_code unseen;
  const auto changed = fs::last_write_time(*program, unseen);
  const auto bytes = fs::file_size(*program, unseen);
  const bool is_same =
      !unseen && known_ && known_->path == *program && changed == changed_ && bytes == bytes_;
  if (is_same) return known_;
  known_.reset();
  known_ = find_ffmpeg(*program, search_path);
  changed_ = changed;
  bytes_ = bytes;
  return known_;
}

}  // namespace flotilla::io
