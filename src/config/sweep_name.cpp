#include "config/sweep_name.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace flotilla::config {
namespace {

constexpr size_t kMaxValueLetters = 40;
constexpr size_t kMaxNameLetters = 150;
constexpr std::string_view kForm = "{index}, {index:04}, {hash}, or a key of the job: {seed}";

bool is_safe(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-' || c == '+';
}

// Of a path its last part; runs of letters that are not safe become one "-".
std::string safe_text(std::string_view value) {
  if (value.starts_with('/')) value.remove_prefix(value.find_last_of('/') + 1);
  std::string text;
  for (const char c : value) {
    if (is_safe(c)) {
      text += c;
    } else if (!text.empty() && text.back() != '-') {
      text += '-';
    }
  }
  text.resize(std::min(text.size(), kMaxValueLetters));
  while (text.ends_with('-')) text.pop_back();
  return text.empty() ? "none" : text;
}

// The width of ":04"; nothing for another form.
std::optional<int> parse_width(std::string_view format) {
  if (format.size() != 2 || format[0] != '0' || format[1] < '1' || format[1] > '9')
    return std::nullopt;
  return format[1] - '0';
}

}  // namespace

NameTemplate::NameTemplate(std::string_view text, std::optional<std::string>& complaint) {
  complaint.reset();
  while (!text.empty() && !complaint) {
    const size_t open = std::min(text.find('{'), text.size());
    const std::string literal(text.substr(0, open));
    if (!std::all_of(literal.begin(), literal.end(), is_safe)) {
      complaint = fmt::format("\"{}\" may hold letters, digits, and . _ - + only, and {}",
                              excerpt(literal), kForm);
    }
    if (!literal.empty()) parts_.push_back({literal});
    text.remove_prefix(open);
    if (text.empty()) return;
    const size_t close = text.find('}');
    if (close == std::string_view::npos) {
      complaint = "has a { without its }";
      return;
    }
    Part part{std::string(text.substr(1, close - 1)), /*is_placeholder=*/true};
    text.remove_prefix(close + 1);
    if (const size_t colon = part.text.find(':'); colon != std::string::npos) {
      const auto width = parse_width(std::string_view(part.text).substr(colon + 1));
      part.text.resize(colon);
      part.width = width.value_or(0);
      if (!width || part.text != "index")
        complaint = fmt::format("only the index has a form, {{index:04}}; expected {}", kForm);
    }
    if (part.text.empty()) complaint = fmt::format("has an empty {{}}; expected {}", kForm);
    parts_.push_back(std::move(part));
  }
}

std::optional<std::string> NameTemplate::render(int64_t index, const Lookup& lookup,
                                                std::string& complaint) const {
  std::string name;
  for (const Part& part : parts_) {
    if (!part.is_placeholder) {
      name += part.text;
    } else if (part.text == "index") {
      name += fmt::format("{:0{}}", index, part.width);
    } else if (const auto value = lookup(part.text)) {
      name += safe_text(*value);
    } else {
      complaint =
          fmt::format("{{{}}} is no key of the job; expected {}", excerpt(part.text), kForm);
      return std::nullopt;
    }
  }
  if (name.empty() || name.size() > kMaxNameLetters || name[0] == '.' || name[0] == '-') {
    complaint = fmt::format("gives the name \"{}\"; expected 1 to {} letters, not . or - in front",
                            excerpt(name), kMaxNameLetters);
    return std::nullopt;
  }
  return name;
}

}  // namespace flotilla::config
