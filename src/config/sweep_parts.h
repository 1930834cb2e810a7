// The keys of a sweep file, and their expansion into what each point sets. Next: sweep.cpp, where
// the settings meet the job.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/problems.h"
#include "config/yaml_tree.h"

namespace flotilla::config {

struct Setting {
  std::string key;  // of the job, dotted
  Place place;      // of the key
  Node value;
};
using Settings = std::vector<Setting>;  // of one point

struct SweepParts {
  Node job;                      // a path, or a map: the job itself
  std::vector<Settings> points;  // the product of grid and zip, then the explicit ones; without
                                 // those that are excluded
  std::filesystem::path folder;  // output.folder, absolute
  std::string name = "{index:04}";
  Place name_place;
};

// What is wrong goes to `problems`; the rest is read all the same. `root`: a map.
SweepParts read_sweep_parts(const Node& root, Problems& problems);

// True when one of the keys is the other, or lies inside of it: "video", "video.width". Brackets
// and dots mean the same: "images[0]", "images.0".
bool keys_overlap(std::string_view a, std::string_view b);

// A value on one line: "512", "[1, 0.5, 0]", "{cfg: 2}".
std::string node_text(const Node& node);

}  // namespace flotilla::config
