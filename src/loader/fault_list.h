// Faults of an audit by kind, told together in one error: a user who fixes a file wants the whole
// list, not its first line.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flotilla::loader {

class FaultList {
 public:
  // Kinds are told in the order in which they first came up.
  void add(std::string_view kind, std::string fault);
  // Throws an ErrorKind::input: `headline`, then each kind with its number and its first faults.
  void throw_if_any(std::string_view headline) const;

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> kinds_;
};

}  // namespace flotilla::loader
