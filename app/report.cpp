#include "app/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace flotilla::app {
namespace {

// A line of a terminal or two; the whole text is in the JSON.
constexpr size_t kMaxLineBytes = 400;

bool holds_bytes(std::string_view key) { return key.find("bytes") != std::string_view::npos; }

std::string text_of(const Report& value, bool is_bytes) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return excerpt(value.get_ref<const std::string&>(), kMaxLineBytes);
  if (value.is_number() && is_bytes) return human_bytes(value.get<double>());
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  if (value.empty()) return "-";
  if (!value.is_array()) return value.dump();
  std::vector<std::string> parts;
  for (const auto& part : value) parts.push_back(text_of(part, is_bytes));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

bool is_table(const Report& value) {
  return value.is_array() && !value.empty() && value.front().is_object();
}

bool is_long_text(const Report& value) {
  return value.is_string() && value.get_ref<const std::string&>().find('\n') != std::string::npos;
}

void print_row(const Report& row, int indent) {
  std::vector<std::string> cells;
  for (const auto& [key, value] : row.items()) cells.push_back(text_of(value, holds_bytes(key)));
  fmt::print("{:{}}{}\n", "", indent, fmt::join(cells, "  "));
}

void print_lines(const std::string& text, int indent) {
  for (const auto line : std::views::split(text, '\n')) {
    const std::string_view bare(line.begin(), line.end());
    if (!bare.empty()) fmt::print("{:{}}{}\n", "", indent, excerpt(bare, kMaxLineBytes));
  }
}

// `is_bytes`: all numbers of the object are.
void print_object(const Report& object, int indent, bool is_bytes) {
  size_t width = 0;
  for (const auto& [key, value] : object.items()) width = std::max(width, key.size());
  for (const auto& [key, value] : object.items()) {
    const bool bytes = is_bytes || holds_bytes(key);
    const std::string name = excerpt(key, kMaxLineBytes);
    const bool nested = value.is_object() && !value.empty();
    if (!nested && !is_table(value) && !is_long_text(value)) {
      fmt::print("{:{}}{:<{}}  {}\n", "", indent, name, width, text_of(value, bytes));
      continue;
    }
    fmt::print("{:{}}{}\n", "", indent, name);
    if (nested) print_object(value, indent + 2, bytes);
    if (is_long_text(value)) print_lines(value.get_ref<const std::string&>(), indent + 2);
    if (!is_table(value)) continue;
    for (const auto& row : value) print_row(row, indent + 2);
  }
}

}  // namespace

void print_report(const Report& report, bool as_json) {
  if (!as_json) return print_object(report, 0, false);
  fmt::print("{}\n", report.dump(2, ' ', false, Report::error_handler_t::replace));
}

}  // namespace flotilla::app
