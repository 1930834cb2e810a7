#include "config/yaml_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace flotilla::config {
namespace {

// Counting the characters of very long lines again for each value would take quadratic time.
constexpr size_t kMaxCountedColumn = 4096;

// A letter of UTF-8 begins here.
bool begins_letter(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

bool is_control(unsigned char c) { return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7F; }

std::string without_carriage_returns(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    clean += text[i];
  }
  return clean;
}

}  // namespace

Lines::Lines(std::string text, std::shared_ptr<const Source> source)
    : text_(std::move(text)), source_(std::move(source)) {
  starts_.push_back(0);
  for (size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] == '\n') starts_.push_back(i + 1);
  }
}

size_t Lines::offset(int line, int column) const {
  if (line < 0 || column < 0 || static_cast<size_t>(line) >= starts_.size()) return text_.size();
  return std::min(text_.size(), starts_[static_cast<size_t>(line)] + static_cast<size_t>(column));
}

size_t Lines::line_index(size_t offset) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) -
                             starts_.begin()) -
         1;
}

Place Lines::place_at(size_t offset) const {
  const size_t line = line_index(offset);
  const auto before = std::string_view(text_).substr(starts_[line], offset - starts_[line]);
  const size_t letters = before.size() > kMaxCountedColumn
                             ? before.size()
                             : std::count_if(before.begin(), before.end(), begins_letter);
  return {source_, static_cast<int>(line) + 1, static_cast<int>(letters) + 1};
}

std::string_view Lines::indent_at(size_t offset) const {
  const auto rest = std::string_view(text_).substr(starts_[line_index(offset)]);
  return rest.substr(0, rest.find_first_not_of(" \t"));
}

std::optional<Lines> read_yaml_text(std::string_view text, std::shared_ptr<const Source> source,
                                    Problems& problems) {
  const Place whole{source, 0, 0};
  if (text.size() > kMaxYamlBytes) {
    problems.add(whole, "",
                 fmt::format("more than {} bytes of YAML; this is no job file", kMaxYamlBytes));
    return std::nullopt;
  }
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (!is_valid_utf8(text)) {
    problems.add(whole, "", "is not UTF-8 text; save it as UTF-8");
    return std::nullopt;
  }
  Lines lines(without_carriage_returns(text), source);
  const std::string& clean = lines.text();
  const auto bad = std::find_if(clean.begin(), clean.end(), is_control);
  if (bad != clean.end()) {
    problems.add(lines.place_at(static_cast<size_t>(bad - clean.begin())), "",
                 fmt::format("control character 0x{:02x}; YAML text must not hold it", *bad));
    return std::nullopt;
  }
  return lines;
}

bool is_quote_closed(std::string_view text, size_t open) {
  const char quote = text[open];
  for (size_t i = open + 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      if (quote == '"' || i + 1 >= text.size() || text[i + 1] != '\'') return true;
      ++i;
    }
  }
  return false;
}

std::string quote_yaml(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace flotilla::config
