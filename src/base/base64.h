// Bytes as text: base64 with padding (RFC 4648, section 4), for JSON and HTML.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace flotilla {

std::string base64(std::span<const uint8_t> bytes);

}  // namespace flotilla
