// How each type of value is read from YAML, written back and named in the documentation. A reader
// returns what is wrong ("found; expected"), or nothing; it never guesses: `yes` is no boolean, 1e3
// no integer, "10" in quotes no number. Text keys take plain words as they stand (`no` is "no").
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/enums.h"
#include "config/job.h"
#include "config/yaml_tree.h"

namespace flotilla::config {

// What is known of a key besides its type. Numbers in lists obey the range one by one.
struct Rule {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  std::string_view unset;        // the word for an optional without value; none: left empty
  std::optional<Pipeline> only;  // the one pipeline that uses the key
  bool required = false;
  std::string_view doc;  // one line for docs/configuration.md
};

// What is wrong with a value: "was found; is allowed".
using Complaint = std::optional<std::string>;

Complaint read_value(const Node& node, const Rule& rule, bool& target);
Complaint read_value(const Node& node, const Rule& rule, int64_t& target);
Complaint read_value(const Node& node, const Rule& rule, uint64_t& target);
Complaint read_value(const Node& node, const Rule& rule, double& target);
Complaint read_value(const Node& node, const Rule& rule, std::string& target);
// The target is absolute: relative text counts from the base folder of the node's source.
Complaint read_value(const Node& node, const Rule& rule, std::filesystem::path& target);
Complaint read_value(const Node& node, const Rule& rule, Rational& target);
Complaint read_value(const Node& node, const Rule& rule, std::vector<int64_t>& target);
Complaint read_value(const Node& node, const Rule& rule, std::vector<double>& target);
Complaint read_value(const Node& node, const Rule& rule, TileGrid& target);
Complaint read_value(const Node& node, const Rule& rule, TileOverlap& target);

std::string value_text(bool value, const Rule& rule);
std::string value_text(int64_t value, const Rule& rule);
std::string value_text(uint64_t value, const Rule& rule);
std::string value_text(double value, const Rule& rule);
std::string value_text(const std::string& value, const Rule& rule);
std::string value_text(const std::filesystem::path& value, const Rule& rule);
std::string value_text(const Rational& value, const Rule& rule);
std::string value_text(const std::vector<int64_t>& value, const Rule& rule);
std::string value_text(const std::vector<double>& value, const Rule& rule);
std::string value_text(const TileGrid& value, const Rule& rule);
std::string value_text(const TileOverlap& value, const Rule& rule);

// "integer, 1 to 1000"; the value only selects the type.
std::string type_text(bool, const Rule& rule);
std::string type_text(int64_t, const Rule& rule);
std::string type_text(uint64_t, const Rule& rule);
std::string type_text(double, const Rule& rule);
std::string type_text(const std::string&, const Rule& rule);
std::string type_text(const std::filesystem::path&, const Rule& rule);
std::string type_text(const Rational&, const Rule& rule);
std::string type_text(const std::vector<int64_t>&, const Rule& rule);
std::string type_text(const std::vector<double>&, const Rule& rule);
std::string type_text(const TileGrid&, const Rule& rule);
std::string type_text(const TileOverlap&, const Rule& rule);

// An absolute path with its folder in canonical form; the last name stays, symbolic link or not.
std::filesystem::path absolute_path(const std::filesystem::path& path,
                                    const std::filesystem::path& base);

// "found nothing", "found a map", "found abc".
std::string found_text(const Node& node);
// "cpu, cuda or auto".
std::string alternatives(const std::vector<std::string>& words);
// `; did you mean "x"?`, or nothing when no candidate is near.
std::string nearest_hint(std::string_view word, const std::vector<std::string>& candidates);

// Reads one of `names`; `refused` explains names that cannot work. -1 and a complaint otherwise.
struct NameChoice {
  int index = -1;
  Complaint complaint;
};
NameChoice read_name(const Node& node, const std::vector<std::string>& names,
                     std::span<const RefusedName> refused);

template <NamedEnum E>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (const auto& row : NameTable<E>::rows) names.emplace_back(row.name);
  return names;
}

template <NamedEnum E>
Complaint read_value(const Node& node, const Rule&, E& target) {
  const NameChoice choice = read_name(node, names_of<E>(), refused_names<E>());
  if (choice.index >= 0) target = NameTable<E>::rows[static_cast<size_t>(choice.index)].value;
  return choice.complaint;
}

template <NamedEnum E>
std::string value_text(E value, const Rule&) {
  return std::string(to_string(value));
}

template <NamedEnum E>
std::string type_text(E, const Rule&) {
  return alternatives(names_of<E>());
}

template <typename T>
std::string type_text(const std::optional<T>&, const Rule& rule) {
  const std::string inner = type_text(T{}, rule);
  return rule.unset.empty() ? inner : fmt::format("{} or {}", rule.unset, inner);
}

template <typename T>
Complaint read_value(const Node& node, const Rule& rule, std::optional<T>& target) {
  const bool is_unset = rule.unset.empty()
                            ? node.kind == Node::Kind::null
                            : node.kind == Node::Kind::scalar && node.text == rule.unset;
  if (is_unset) {
    target.reset();
    return std::nullopt;
  }
  T value{};
  if (auto complaint = read_value(node, rule, value)) {
    if (!rule.unset.empty()) *complaint += fmt::format(", or {}", rule.unset);
    return complaint;
  }
  target = std::move(value);
  return std::nullopt;
}

template <typename T>
std::string value_text(const std::optional<T>& value, const Rule& rule) {
  return value ? value_text(*value, rule) : std::string(rule.unset);
}

}  // namespace flotilla::config
