// The table of keys as text: the tables of docs/configuration.md are made of it and tested with it.
#pragma once

#include <string>
#include <vector>

namespace flotilla::config {

struct KeyDoc {
  std::string section;  // first part of a dotted key; "job" for keys without a dot
  std::string key;      // "video.width", "images[].path"
  std::string type;
  std::string default_text;  // "required", "empty" or the value as YAML
  std::string meaning;
};

// All keys in the order of the table.
std::vector<KeyDoc> describe_keys();

}  // namespace flotilla::config
