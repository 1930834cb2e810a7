#include "config/problems.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace flotilla::config {
namespace {

constexpr size_t kMaxShown = 50;

// "--set video.width: video.width: ..." would say the key twice.
bool names_key(const Place& place, std::string_view key) {
  return place.source && place.source->name == fmt::format("--set {}", key);
}

std::string line_of(const Problem& problem) {
  std::string line = problem.place.text() + ": ";
  if (!problem.key.empty() && !names_key(problem.place, problem.key)) line += problem.key + ": ";
  return line + problem.text;
}

bool is_inside(std::string_view inner, std::string_view outer) {
  return inner.starts_with(outer) &&
         (inner.size() == outer.size() || inner[outer.size()] == '.' || inner[outer.size()] == '[');
}

}  // namespace

std::string Place::text() const {
  const std::string name = source ? source->name : "job";
  return line > 0 && source && source->has_lines ? fmt::format("{}:{}:{}", name, line, column)
                                                 : name;
}

void Problems::add(Place place, std::string key, std::string text) {
  problems_.push_back({std::move(place), std::move(key), std::move(text)});
}

bool Problems::concerns(std::string_view key) const {
  return std::any_of(problems_.begin(), problems_.end(), [key](const Problem& problem) {
    return is_inside(problem.key, key) || is_inside(key, problem.key);
  });
}

void Problems::throw_if_any(ErrorKind kind) const {
  if (problems_.empty()) return;
  std::vector<const Problem*> sorted;
  for (const auto& problem : problems_) sorted.push_back(&problem);
  // The file first, line by line; problems of options keep their order behind it.
  const auto rank = [](const Problem* p) {
    const bool is_option = p->place.source && !p->place.source->has_lines;
    return std::tuple(is_option, is_option ? 0 : p->place.line, is_option ? 0 : p->place.column);
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Problem* a, const Problem* b) { return rank(a) < rank(b); });
  std::string text;
  for (size_t i = 0; i < std::min(sorted.size(), kMaxShown); ++i) {
    if (i > 0) text += '\n';
    text += line_of(*sorted[i]);
  }
  if (sorted.size() > kMaxShown) {
    text += fmt::format("\nand {} more problems", sorted.size() - kMaxShown);
  }
  fail(kind, std::move(text));
}

}  // namespace flotilla::config
