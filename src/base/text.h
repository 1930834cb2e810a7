// Small text helpers that several rooms need: near words, human sizes, quoting.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// The candidate with the smallest edit distance to `word`, or "" when none is near
// (more than a third of the letters differ).
std::string nearest_word(std::string_view word, std::span<const std::string> candidates);

// "17.3 GiB", "512 B".
std::string human_bytes(double bytes);
// "1.2 s", "3 min 05 s", "2 h 10 min".
std::string human_duration(double seconds);

// With A to Z as a to z; other letters stay.
std::string to_lower(std::string_view text);
// "[1, 24, 128]".
std::string shape_text(std::span<const int64_t> shape);
bool is_valid_utf8(std::string_view text);
// The first `max_bytes` bytes, cut at a character border, with "..." when something was cut and
// control characters made visible; for quoting text of strangers in messages.
std::string excerpt(std::string_view text, size_t max_bytes = 80);

}  // namespace flotilla
