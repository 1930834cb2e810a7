#include "config/overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"

namespace flotilla::config {
namespace {

// "a.b[0].c" -> a, b, 0, c. Nothing when a part is empty, or odd characters are in it.
std::optional<std::vector<std::string>> split_key(std::string_view key) {
  std::string text(key);
  for (size_t at = text.find('['); at != std::string::npos; at = text.find('[', at)) {
    const size_t end = text.find(']', at);
    if (end == std::string::npos || at == 0) return std::nullopt;
    if (end + 1 < text.size() && text[end + 1] != '.' && text[end + 1] != '[') return std::nullopt;
    text.erase(end, 1);
    text[at] = '.';
  }
  std::vector<std::string> parts(1);
  for (const char c : text) {
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '-';
    if (c == '.') {
      parts.emplace_back();
    } else if (is_word) {
      parts.back() += c;
    } else {
      return std::nullopt;
    }
  }
  const bool has_gap =
      std::any_of(parts.begin(), parts.end(), [](const std::string& part) { return part.empty(); });
  if (has_gap || parts.size() >= kMaxYamlDepth) return std::nullopt;
  return parts;
}

std::optional<size_t> as_index(const std::string& part) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  if (error != std::errc{} || end != part.data() + part.size()) return std::nullopt;
  return index;
}

Node* list_element(Node& list, const std::string& part, const Place& place, const std::string& key,
                   Problems& problems) {
  const auto index = as_index(part);
  if (!index || *index > list.items.size()) {
    problems.add(place, key,
                 fmt::format("\"{}\" is no place in the list; it has {} elements, and {} would "
                             "append one",
                             excerpt(part, 20), list.items.size(), list.items.size()));
    return nullptr;
  }
  if (*index == list.items.size()) {
    list.items.emplace_back();
    list.items.back().place = place;
  }
  return &list.items[*index];
}

Node* map_value(Node& map, const std::string& part, const Place& place) {
  if (Entry* entry = map.find(part)) {
    entry->key_place = place;
    return &entry->value;
  }
  map.entries.push_back({part, place, {}});
  map.entries.back().value.place = place;
  return &map.entries.back().value;
}

// The node that `key` names; a plain value on the way there (`tiling: auto`) gives way to a map.
Node* descend(Node& tree, const std::vector<std::string>& parts, const Place& place,
              const std::string& key, Problems& problems) {
  Node* node = &tree;
  for (const auto& part : parts) {
    const bool is_container = node->kind == Node::Kind::map || node->kind == Node::Kind::sequence;
    if (!is_container) {
      *node = Node{};
      node->kind = as_index(part) ? Node::Kind::sequence : Node::Kind::map;
      node->place = place;
    }
    node = node->kind == Node::Kind::sequence ? list_element(*node, part, place, key, problems)
                                              : map_value(*node, part, place);
    if (node == nullptr) return nullptr;
  }
  return node;
}

Node value_of(const Override& change, const std::shared_ptr<const Source>& source,
              Problems& problems) {
  if (!change.raw_string) return parse_yaml(change.value, source, problems);
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = change.value;
  node.quoted = true;
  node.place = {source, 0, 0};
  if (change.value.find('\0') != std::string::npos || !is_valid_utf8(change.value)) {
    problems.add(node.place, change.key, "is not UTF-8 text");
    node.kind = Node::Kind::broken;
  }
  return node;
}

}  // namespace

Override parse_set(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    fail(ErrorKind::usage, fmt::format("--set {}: expected key=value, for example "
                                       "--set video.width=512",
                                       excerpt(text)));
  }
  return {.key = std::string(text.substr(0, equals)),
          .value = std::string(text.substr(equals + 1)),
          .origin = "",
          .raw_string = false};
}

void put_value(Node& tree, const std::string& key, Node value, const Place& place,
               Problems& problems) {
  const auto parts = split_key(key);
  if (!parts) {
    problems.add(place, "",
                 fmt::format("\"{}\" is no key; expected words with dots, like "
                             "stage_1.guidance.video.cfg",
                             excerpt(key)));
    return;
  }
  if (Node* target = descend(tree, *parts, place, key, problems)) *target = std::move(value);
}

void apply_overrides(Node& tree, std::span<const Override> overrides,
                     const std::filesystem::path& working_folder, Problems& problems) {
  for (const auto& change : overrides) {
    const std::string name = change.origin.empty() ? "--set " + excerpt(change.key) : change.origin;
    const auto source = std::make_shared<const Source>(
        Source{.name = name, .base = working_folder, .has_lines = false, .file = {}});
    const Place place{source, 0, 0};
    Node value = value_of(change, source, problems);
    put_value(tree, change.key, std::move(value), place, problems);
  }
}

}  // namespace flotilla::config
