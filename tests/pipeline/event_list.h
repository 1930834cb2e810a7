// The events of a job in memory, and the pictures in them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/events.h"

namespace flotilla::test {

class EventList final : public io::EventSink {
 public:
  void emit(const nlohmann::json& event) override { events_.push_back(event); }
  std::vector<nlohmann::json> of_kind(std::string_view kind) const {
    std::vector<nlohmann::json> found;
    for (const auto& event : events_)
      if (event.at("event") == kind) found.push_back(event);
    return found;
  }

 private:
  std::vector<nlohmann::json> events_;
};

// The inverse of base64(), for text without errors.
inline std::string from_base64(std::string_view text) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char letter : text.substr(0, text.find('='))) {
    bits = bits << 6 | static_cast<uint32_t>(kLetters.find(letter));
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    bytes += static_cast<char>(bits >> num_bits & 0xFF);
  }
  return bytes;
}

}  // namespace flotilla::test
