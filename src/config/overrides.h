// Options of the command line as changes to the tree of the job file: `--set video.width=512`.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "config/problems.h"
#include "config/yaml_tree.h"

namespace flotilla::config {

struct Override {
  std::string key;  // dotted; list elements by number: "images.0.strength" or "images[0].strength"
  std::string value;   // YAML, e.g. "512", "[1, 0.5, 0]", "{cfg: 2}"; empty takes the value away
  std::string origin;  // how messages call it, e.g. "--seed"; empty: "--set key"
  bool raw_string = false;  // `value` is text as it stands: "--prompt" needs no YAML quotes
};

// Splits "key=value" of --set. Errors (ErrorKind::usage): no "=", or no key.
Override parse_set(std::string_view text);

// Puts `value` where `key` says, in place of what the tree has there; missing maps and lists are
// made. `place`: of the key, for messages.
void put_value(Node& tree, const std::string& key, Node value, const Place& place,
               Problems& problems);

// put_value() for each, in order. Relative paths in them count from `working_folder`.
void apply_overrides(Node& tree, std::span<const Override> overrides,
                     const std::filesystem::path& working_folder, Problems& problems);

}  // namespace flotilla::config
