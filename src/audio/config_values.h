// Sizes and rates in the configurations of this room, bounded so that no product of a few of them
// overflows: a checkpoint is data from strangers. Private to the room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "loader/config_reader.h"

namespace flotilla::audio {

// The value of `key`, from 1 to 2^30. Errors (ErrorKind::input): another value; absent, without a
// default.
int64_t read_size(const loader::ConfigReader& reader, const std::string& key,
                  std::optional<int64_t> otherwise = std::nullopt);

// The sizes in `list`, which stands somewhere below `key`: one to sixteen, each from 1 to 65536.
std::vector<int64_t> parse_sizes(const loader::ConfigReader& reader, const std::string& key,
                                 const nlohmann::json& list);
// The same for the list that is the value of `key`.
std::vector<int64_t> read_sizes(const loader::ConfigReader& reader, const std::string& key,
                                std::vector<int64_t> otherwise);

}  // namespace flotilla::audio
