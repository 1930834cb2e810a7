// YAML text before it is parsed: cleaned, refused where no YAML may stand, and divided into lines
// so that byte offsets become places for people (from 1, columns in characters).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/problems.h"

namespace flotilla::config {

inline constexpr size_t kMaxYamlBytes = 1 << 20;

class Lines {
 public:
  Lines(std::string text, std::shared_ptr<const Source> source);

  const std::string& text() const { return text_; }
  // Line and column from 0 in bytes, as yaml-cpp counts them; the end of the text when outside.
  size_t offset(int line, int column) const;
  Place place_at(size_t offset) const;
  // Spaces and tabs in front of the line that `offset` lies in.
  std::string_view indent_at(size_t offset) const;

 private:
  size_t line_index(size_t offset) const;

  std::string text_;
  std::shared_ptr<const Source> source_;
  std::vector<size_t> starts_;
};

// The text without byte-order mark and carriage returns, as lines. Nothing, and a problem recorded,
// when it is too large, not UTF-8 or holds control characters.
std::optional<Lines> read_yaml_text(std::string_view text, std::shared_ptr<const Source> source,
                                    Problems& problems);

// False when the quote at `open` has no partner: yaml-cpp takes the end of the text for it.
bool is_quote_closed(std::string_view text, size_t open);

// `text` in double quotes with the escapes of YAML.
std::string quote_yaml(std::string_view text);

}  // namespace flotilla::config
