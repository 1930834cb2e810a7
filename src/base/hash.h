// FNV-1a, 64 bits: tells files, jobs and tensors apart in records. No protection against intent.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace flotilla {

inline constexpr uint64_t kHashStart = 0xcbf29ce484222325ULL;

// `bytes` added to `hash`.
constexpr uint64_t add_to_hash(uint64_t hash, std::string_view bytes) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  return hash;
}

// 16 hexadecimal digits.
inline std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace flotilla
