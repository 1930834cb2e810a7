#include "app/html.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <vector>

#include "base/base64.h"
#include "base/text.h"

namespace flotilla::app::html {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --line: #8884; --accent: #2f6fb0; --bad: #b3261e; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } .wide { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); }
td { overflow-wrap: break-word; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
video, img { max-width: 100%; } .grid video { width: 15rem; } .grid td { min-width: 15rem; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid var(--line); }
.failed { color: var(--bad); font-weight: 600; } .note { opacity: .75; }
th.sortable { cursor: pointer; text-decoration: underline dotted; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; font: 12px system-ui, sans-serif; }
)";

// Nothing is fetched, whatever the page says: media come from the page and from files beside it.
constexpr std::string_view kPolicy =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: file: 'self'; media-src data: file: 'self'";

// A path as a relative URL; every letter that could mean something else is written as a number.
std::string percent(const std::string& path) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~/";
  std::string url;
  for (const char letter : path) {
    if (kPlain.find(letter) != std::string_view::npos) {
      url += letter;
    } else {
      url += fmt::format("%{:02X}", static_cast<unsigned char>(letter));
    }
  }
  return url;
}

}  // namespace

std::string escape(std::string_view text) {
  const bool is_text = is_valid_utf8(text);
  std::string safe;
  safe.reserve(text.size());
  for (const char letter : text) {
    switch (letter) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default: {
        const auto code = static_cast<unsigned char>(letter);
        const bool is_control = (code < 0x20 && letter != '\n' && letter != '\t') || code == 0x7F;
        if (!is_control) safe += code < 0x80 || is_text ? letter : '?';
      }
    }
  }
  return safe;
}

std::string Files::link(const fs::path& file) const {
  std::error_code code;
  const fs::path relative = fs::relative(file, folder_.empty() ? "." : folder_, code);
  return percent((code || relative.empty() ? fs::absolute(file) : relative).string());
}

std::string Files::url(const fs::path& file, std::string_view media_type) {
  std::error_code code;
  if (!fs::is_regular_file(file, code)) return "";
  const auto bytes = static_cast<int64_t>(fs::file_size(file, code));
  if (code || bytes > left_) return link(file);
  std::ifstream in(file, std::ios::binary);
  const std::vector<unsigned char> data{std::istreambuf_iterator<char>(in), {}};
  if (static_cast<int64_t>(data.size()) != bytes) return link(file);
  left_ -= bytes;
  return fmt::format("data:{};base64,{}", media_type, base64(data));
}

std::string clip(Files& files, const fs::path& file) {
  std::error_code code;
  if (!fs::is_regular_file(file, code))
    return fmt::format("<p class=\"note\">clip not found: {}</p>", escape(file.string()));
  const std::string link =
      fmt::format("<a href=\"{}\">{}</a>", files.link(file), escape(file.filename().string()));
  if (to_lower(file.extension().string()) != ".mp4") return fmt::format("<p>{}</p>", link);
  return fmt::format(
      "<video controls=\"controls\" loop=\"loop\" preload=\"metadata\" src=\"{}\"></video>"
      "<p class=\"note\">{}</p>",
      files.url(file, "video/mp4"), link);
}

std::string page(std::string_view title, std::string_view body, std::string_view script) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n{}\n<script>{}</script>\n</body>\n"
      "</html>\n",
      kPolicy, escape(title), kStyle, body, script);
}

}  // namespace flotilla::app::html
