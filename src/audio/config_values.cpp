#include "audio/config_values.h"

#include <algorithm>

namespace flotilla::audio {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 30;
constexpr size_t kMaxEntries = 16;
constexpr int64_t kMaxEntry = 1 << 16;

}  // namespace

int64_t read_size(const loader::ConfigReader& reader, const std::string& key,
                  std::optional<int64_t> otherwise) {
  if (otherwise && !reader.has(key)) return *otherwise;
  const int64_t value = reader.get<int64_t>(key);
  if (value < 1 || value > kMaxSize) {
    reader.fail_value(key, fmt::format("must lie between 1 and {}", kMaxSize));
  }
  return value;
}

std::vector<int64_t> parse_sizes(const loader::ConfigReader& reader, const std::string& key,
                                 const nlohmann::json& list) {
  const auto good = [](const nlohmann::json& entry) {
    return entry.is_number_integer() && entry >= 1 && entry <= kMaxEntry;
  };
  if (!list.is_array() || list.empty() || list.size() > kMaxEntries ||
      !std::all_of(list.begin(), list.end(), good)) {
    reader.fail_value(key, "must be a short list of positive sizes");
  }
  return list.get<std::vector<int64_t>>();
}

std::vector<int64_t> read_sizes(const loader::ConfigReader& reader, const std::string& key,
                                std::vector<int64_t> otherwise) {
  return reader.has(key) ? parse_sizes(reader, key, reader.raw(key)) : otherwise;
}

}  // namespace flotilla::audio
