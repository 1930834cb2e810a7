// Remembers where each given key of a job stands, for messages about rules across keys and for the
// question whether a key was given at all.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "config/problems.h"

namespace flotilla::config {

class Origins {
 public:
  explicit Origins(Place root = {}) : root_(std::move(root)) {}

  void record(const std::string& key, Place place) { places_[key] = std::move(place); }
  // Keys are dotted, with list indices in brackets: "images[0].strength".
  bool given(const std::string& key) const { return places_.count(key) != 0; }
  // Where `key` stands, or else the nearest key around it, or else the job file as a whole.
  Place place(std::string key) const;
  const Place& root() const { return root_; }

 private:
  Place root_;
  std::map<std::string, Place> places_;
};

}  // namespace flotilla::config
