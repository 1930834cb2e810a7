// Pieces of an HTML page that needs no network: escaping, embedded files, the frame of the page.
// Every text of a job is a stranger's: it goes through escape(), and is never part of a script.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla::app::html {

// For text and for attribute values in quotes; also XML. Control characters are dropped.
std::string escape(std::string_view text);

// Files up to a sum of bytes become part of the page, the others are linked by a relative path.
class Files {
 public:
  // `page`: where the page will lie.
  Files(const std::filesystem::path& page, int64_t embedded_bytes)
      : folder_(page.parent_path()), left_(embedded_bytes) {}
  // For src or href, already escaped; "" when there is no such file.
  std::string url(const std::filesystem::path& file, std::string_view media_type);
  // The relative path of the file, always as a link.
  std::string link(const std::filesystem::path& file) const;

 private:
  std::filesystem::path folder_;
  int64_t left_;
};

// <video> for an mp4, a link for other clips, a word for one that is gone.
std::string clip(Files& files, const std::filesystem::path& file);

// `body` inside a page with the style of all reports; `script` is ours, never of a job.
std::string page(std::string_view title, std::string_view body, std::string_view script = "");

}  // namespace flotilla::app::html
