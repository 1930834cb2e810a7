// Problems of a job are collected, not thrown one by one: the user sees all of them at once, each
// as "file:line:column: key: what was found; what is allowed". An option of the command line stands
// in the place of file, line and column.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace flotilla::config {

// Where text came from: a job file, standard input or one option of the command line.
struct Source {
  std::string name;            // "job.yaml", "--set video.width"
  std::filesystem::path base;  // folder that relative paths count from, absolute
  bool has_lines = true;       // false for options: a column in them would puzzle
  std::filesystem::path file;  // the file itself, absolute; empty when it is none
};

struct Place {
  std::shared_ptr<const Source> source;
  int line = 0;  // from 1; 0: the source as a whole
  int column = 0;

  // "job.yaml:14:3", "job.yaml", "--seed".
  std::string text() const;
};

struct Problem {
  Place place;
  std::string key;  // dotted; may be empty
  std::string text;
};

class Problems {
 public:
  void add(Place place, std::string key, std::string text);
  bool empty() const { return problems_.empty(); }
  const std::vector<Problem>& all() const { return problems_; }
  // True when `key`, something inside it or something around it was reported: its value says
  // nothing.
  bool concerns(std::string_view key) const;
  // Throws one Error that holds all problems in the order of the sources and lines, when there are
  // any.
  void throw_if_any(ErrorKind kind) const;

 private:
  std::vector<Problem> problems_;
};

}  // namespace flotilla::config
