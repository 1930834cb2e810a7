// Sizes from model configurations, bounded before anything is reserved or multiplied.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "loader/config_reader.h"

namespace flotilla::text {

// Far above any real model.
inline constexpr int64_t kMaxConfigSize = 1 << 24;

// The entry `key`, 1 to `most`; an absent one is `otherwise`, or an error without that.
inline int64_t config_size(const loader::ConfigReader& config, const std::string& key,
                           std::optional<int64_t> otherwise = std::nullopt,
                           int64_t most = kMaxConfigSize) {
  const auto value = otherwise ? config.get<int64_t>(key, *otherwise) : config.get<int64_t>(key);
  if (value < 1 || value > most) config.fail_value(key, fmt::format("must be 1 to {}", most));
  return value;
}

}  // namespace flotilla::text
