#include "config/values.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "config/yaml_text.h"

namespace flotilla::config {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMaxNumbers = 1001;  // the noise levels of 1000 steps

// Whole values print without a point.
std::string bound_text(double bound) { return fmt::format("{}", bound); }

std::string range_text(std::string_view type, const Rule& rule) {
  const bool has_min = std::isfinite(rule.min);
  const bool has_max = std::isfinite(rule.max);
  if (rule.min == rule.max) return bound_text(rule.min);
  if (has_min && has_max) {
    return fmt::format("{}, {} to {}", type, bound_text(rule.min), bound_text(rule.max));
  }
  if (has_min) return fmt::format("{}, {} or more", type, bound_text(rule.min));
  return std::string(type);
}

template <typename T>
std::string complain(const Node& node, const T& type, const Rule& rule) {
  return fmt::format("{}; expected {}", found_text(node), type_text(type, rule));
}

bool is_plain_scalar(const Node& node) { return node.kind == Node::Kind::scalar && !node.quoted; }

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return c >= '0' && c <= '9'; });
}

std::string_view without_sign(std::string_view text) {
  return text.starts_with('-') ? text.substr(1) : text;
}

// Octal to some YAML readers, decimal to others.
bool has_leading_zero(std::string_view text) {
  const std::string_view digits = without_sign(text);
  return digits.size() > 1 && digits[0] == '0' && digits[1] >= '0' && digits[1] <= '9';
}

template <typename T>
std::optional<T> parse_whole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_double(std::string_view text) {
  const bool is_number =
      !text.empty() && text.find_first_not_of("0123456789.eE+-") == std::string_view::npos;
  if (!is_number || has_leading_zero(text)) return std::nullopt;
  const auto value = parse_whole<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// What is special about text that is nearly a number: "1e3", "24.0", "010", a quoted "10".
std::string number_hint(const Node& node, bool whole) {
  if (node.kind != Node::Kind::scalar) return "";
  const auto value = parse_double(node.text);
  if (node.quoted && value) return " (text, because of the quotes)";
  if (has_leading_zero(node.text) && is_digits(without_sign(node.text))) {
    return " (a leading zero is octal to some readers; leave it out)";
  }
  if (whole && value && *value == std::floor(*value) && std::fabs(*value) < 1e15 &&
      !is_digits(without_sign(node.text))) {
    return fmt::format(" (write {:.0f})", *value);
  }
  return "";
}

// Frame rates are fractions of numbers up to kMaxRateDigits long.
std::string digits_hint(const Node& node) {
  size_t digits = 0;
  for (const char c : node.text) {
    digits = c >= '0' && c <= '9' ? digits + 1 : 0;
    if (digits > kMaxRateDigits)
      return fmt::format(" (more than {} digits in a row)", kMaxRateDigits);
  }
  return "";
}

template <typename T>
Complaint read_number(const Node& node, const Rule& rule, T& target) {
  constexpr bool kWhole = std::is_integral_v<T>;
  std::optional<T> value;
  if (is_plain_scalar(node)) {
    if constexpr (kWhole) {
      const bool is_whole = is_digits(without_sign(node.text)) && !has_leading_zero(node.text);
      value = is_whole ? parse_whole<T>(node.text) : std::nullopt;
    } else {
      value = parse_double(node.text);
    }
  }
  const bool fits =
      value && static_cast<double>(*value) >= rule.min && static_cast<double>(*value) <= rule.max;
  if (!fits) {
    return fmt::format("{}{}; expected {}", found_text(node), number_hint(node, kWhole),
                       type_text(T{}, rule));
  }
  target = *value;
  return std::nullopt;
}

template <typename T>
Complaint read_list(const Node& node, const Rule& rule, std::vector<T>& target) {
  if (node.kind != Node::Kind::sequence) return complain(node, target, rule);
  if (node.items.size() > kMaxNumbers) {
    return fmt::format("found {} elements; at most {} are allowed", node.items.size(), kMaxNumbers);
  }
  std::vector<T> values(node.items.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (auto complaint = read_value(node.items[i], rule, values[i])) {
      return fmt::format("element {}: {}", i, *complaint);
    }
  }
  target = std::move(values);
  return std::nullopt;
}

Complaint read_triple(const Node& node, const Rule& rule, std::array<int64_t, 3>& target) {
  std::vector<int64_t> values;
  if (auto complaint = read_list(node, rule, values)) return complaint;
  if (values.size() != 3) return fmt::format("found {} elements; expected 3", values.size());
  std::copy(values.begin(), values.end(), target.begin());
  return std::nullopt;
}

}  // namespace

std::string found_text(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return "found nothing";
    case Node::Kind::sequence:
      return "found a list";
    case Node::Kind::map:
      return "found a map";
    default:
      return node.quoted ? fmt::format("found \"{}\"", excerpt(node.text, 60))
                         : fmt::format("found {}", excerpt(node.text, 60));
  }
}

std::string alternatives(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  }
  return text;
}

std::string nearest_hint(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestKey = 64;  // edit distances of endless words are slow and say nothing
  if (word.size() > kLongestKey) return "";
  const std::string nearest = nearest_word(word, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest);
}

NameChoice read_name(const Node& node, const std::vector<std::string>& names,
                     std::span<const RefusedName> refused) {
  const std::string allowed = alternatives(names);
  if (node.kind != Node::Kind::scalar) {
    return {-1, fmt::format("{}; expected {}", found_text(node), allowed)};
  }
  const auto found = std::find(names.begin(), names.end(), node.text);
  if (found != names.end()) return {static_cast<int>(found - names.begin()), std::nullopt};
  for (const auto& [name, reason] : refused) {
    if (node.text == name) return {-1, fmt::format("{} is refused: {}", name, reason)};
  }
  return {-1, fmt::format("{}; expected {}{}", found_text(node), allowed,
                          nearest_hint(node.text, names))};
}

fs::path absolute_path(const fs::path& path, const fs::path& base) {
  const fs::path joined = base / path;
  const bool has_name =
      joined.has_filename() && joined.filename() != "." && joined.filename() != "..";
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(has_name ? joined.parent_path() : joined, error);
  if (error) return joined.lexically_normal();
  return has_name ? folder / joined.filename() : folder;
}

// Reading.

Complaint read_value(const Node& node, const Rule& rule, bool& target) {
  if (is_plain_scalar(node) && (node.text == "true" || node.text == "false")) {
    target = node.text == "true";
    return std::nullopt;
  }
  return complain(node, target, rule);
}

Complaint read_value(const Node& node, const Rule& rule, int64_t& target) {
  return read_number(node, rule, target);
}
Complaint read_value(const Node& node, const Rule& rule, uint64_t& target) {
  return read_number(node, rule, target);
}
Complaint read_value(const Node& node, const Rule& rule, double& target) {
  return read_number(node, rule, target);
}

Complaint read_value(const Node& node, const Rule& rule, std::string& target) {
  if (node.kind != Node::Kind::scalar) return complain(node, target, rule);
  target = node.text;
  return std::nullopt;
}

Complaint read_value(const Node& node, const Rule& rule, fs::path& target) {
  if (node.kind == Node::Kind::null && !rule.required) {
    target.clear();
    return std::nullopt;
  }
  if (node.kind != Node::Kind::scalar || node.text.empty()) return complain(node, target, rule);
  const bool is_variable =
      node.text[0] == '$' && node.text.size() > 1 &&
      (node.text[1] == '{' || std::isalpha(static_cast<unsigned char>(node.text[1])) != 0);
  if (node.text[0] == '~' || is_variable) {
    return fmt::format(
        "{}; ~ and variables are not expanded: write the folder out, or ./ in front "
        "of a name that begins so",
        found_text(node));
  }
  fs::path path = absolute_path(node.text, node.place.source->base);
  if (!is_valid_utf8(path.native())) return "lies in a folder whose name is not UTF-8";
  target = std::move(path);
  return std::nullopt;
}

Complaint read_value(const Node& node, const Rule& rule, Rational& target) {
  const auto rate = node.kind == Node::Kind::scalar && !has_leading_zero(node.text)
                        ? parse_frame_rate(node.text)
                        : std::nullopt;
  if (!rate || rate->to_double() < rule.min || rate->to_double() > rule.max) {
    return fmt::format("{}{}; expected {}", found_text(node), rate ? "" : digits_hint(node),
                       type_text(target, rule));
  }
  target = *rate;
  return std::nullopt;
}

Complaint read_value(const Node& node, const Rule& rule, std::vector<int64_t>& target) {
  return read_list(node, rule, target);
}
Complaint read_value(const Node& node, const Rule& rule, std::vector<double>& target) {
  return read_list(node, rule, target);
}
Complaint read_value(const Node& node, const Rule& rule, TileGrid& target) {
  return read_triple(node, rule, target);
}
Complaint read_value(const Node& node, const Rule& rule, TileOverlap& target) {
  if (node.kind == Node::Kind::sequence) return read_triple(node, rule, target.cells);
  int64_t cells = 0;
  if (read_value(node, rule, cells)) return complain(node, target, rule);
  target.cells.fill(cells);
  return std::nullopt;
}

// Writing.

std::string value_text(bool value, const Rule&) { return value ? "true" : "false"; }
std::string value_text(int64_t value, const Rule&) { return fmt::format("{}", value); }
std::string value_text(uint64_t value, const Rule&) { return fmt::format("{}", value); }
std::string value_text(double value, const Rule&) { return fmt::format("{}", value); }
std::string value_text(const std::string& value, const Rule&) { return quote_yaml(value); }
std::string value_text(const fs::path& value, const Rule&) {
  return value.empty() ? "" : quote_yaml(value.native());
}
std::string value_text(const Rational& value, const Rule&) { return value.to_string(); }
std::string value_text(const std::vector<int64_t>& value, const Rule&) {
  return fmt::format("[{}]", fmt::join(value, ", "));
}
std::string value_text(const std::vector<double>& value, const Rule&) {
  return fmt::format("[{}]", fmt::join(value, ", "));
}
std::string value_text(const TileGrid& value, const Rule&) {
  return fmt::format("[{}]", fmt::join(value, ", "));
}
std::string value_text(const TileOverlap& value, const Rule& rule) {
  const auto& [frames, rows, columns] = value.cells;
  return frames == rows && rows == columns ? value_text(frames, rule)
                                           : value_text(TileGrid(value.cells), rule);
}

// Naming.

std::string type_text(bool, const Rule&) { return "true or false"; }
std::string type_text(int64_t, const Rule& rule) { return range_text("integer", rule); }
std::string type_text(uint64_t, const Rule&) {
  return fmt::format("integer, 0 to {}", std::numeric_limits<uint64_t>::max());
}
std::string type_text(double, const Rule& rule) { return range_text("number", rule); }
std::string type_text(const std::string&, const Rule&) { return "text"; }
std::string type_text(const fs::path&, const Rule&) { return "path"; }
std::string type_text(const Rational&, const Rule& rule) {
  return range_text("integer, decimal or fraction like 24000/1001", rule);
}
std::string type_text(const std::vector<int64_t>&, const Rule& rule) {
  return range_text("list of integers", rule);
}
std::string type_text(const std::vector<double>&, const Rule& rule) {
  return range_text("list of numbers", rule);
}
std::string type_text(const TileGrid&, const Rule& rule) {
  return range_text("[frames, rows, columns]", rule);
}
std::string type_text(const TileOverlap&, const Rule& rule) {
  return range_text("integer or [frames, rows, columns]", rule);
}

}  // namespace flotilla::config
