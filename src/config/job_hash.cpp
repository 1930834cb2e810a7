#include "config/job_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/hash.h"
#include "config/writer.h"

namespace flotilla::config {
namespace {

constexpr std::array<std::string_view, 3> kOtherConcerns = {"output.", "checkpoint.", "limits."};

}  // namespace

std::string job_hash(const Job& job) {
  uint64_t hash = kHashStart;
  for (const auto& [key, value] : dotted_values(job)) {
    const bool counts = std::none_of(kOtherConcerns.begin(), kOtherConcerns.end(),
                                     [&](auto start) { return key.starts_with(start); });
    // Lengths keep "a: bc" and "ab: c" apart.
    if (counts)
      hash = add_to_hash(hash, fmt::format("{}:{}={}:{};", key.size(), key, value.size(), value));
  }
  return hash_text(hash);
}

}  // namespace flotilla::config
