// YAML text as a tree of our own, with the place of every value. The subset that a job needs: maps,
// lists and plain or quoted text; no anchors, aliases, merge keys, tags or several documents.
// Scalars stay text, so `no`, 010 and 1e3 mean what the key that reads them says, never what YAML
// guesses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/problems.h"

namespace flotilla::config {

struct Entry;

struct Node {
  enum class Kind { null, scalar, sequence, map, broken };  // broken: reported, not to be read
  Kind kind = Kind::null;
  std::string text;     // scalar
  bool quoted = false;  // scalar in quotes or block style: text, never a number or a word
  Place place;
  std::vector<Node> items;     // sequence
  std::vector<Entry> entries;  // map, in the order of the file, keys distinct
  Entry* find(std::string_view key);
};

struct Entry {
  std::string key;
  Place key_place;
  Node value;
};

inline constexpr size_t kMaxYamlDepth = 32;

// Parses one document. A byte-order mark and CRLF are fine; text that is empty gives a null node.
// Everything wrong goes to `problems`; after a syntax error the node is broken.
Node parse_yaml(std::string_view text, std::shared_ptr<const Source> source, Problems& problems);

}  // namespace flotilla::config
