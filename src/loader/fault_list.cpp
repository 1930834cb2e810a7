#include "loader/fault_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace flotilla::loader {
namespace {

// How many faults of one kind are listed before the rest is only counted.
constexpr size_t kMaxListed = 12;

}  // namespace

void FaultList::add(std::string_view kind, std::string fault) {
  auto at = std::find_if(kinds_.begin(), kinds_.end(),
                         [kind](const auto& entry) { return entry.first == kind; });
  if (at == kinds_.end()) at = kinds_.insert(at, {std::string(kind), {}});
  at->second.push_back(std::move(fault));
}

void FaultList::throw_if_any(std::string_view headline) const {
  if (kinds_.empty()) return;
  std::string text = fmt::format("{}:", headline);
  for (const auto& [kind, faults] : kinds_) {
    text += fmt::format("\n  {} ({}):", kind, faults.size());
    for (size_t i = 0; i < std::min(faults.size(), kMaxListed); ++i) text += "\n    " + faults[i];
    if (faults.size() > kMaxListed)
      text += fmt::format("\n    ... and {} more", faults.size() - kMaxListed);
  }
  fail(ErrorKind::input, text);
}

}  // namespace flotilla::loader
