#include "fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <iterator>
#include <string_view>

namespace flotilla::fuzz {
namespace {

constexpr size_t kMaxBytes = 64 << 10;
constexpr size_t kKept = 64;  // inputs that were read, besides the good ones

constexpr std::array<std::string_view, 12> kDecimals = {
    "0",          "-1",         "1e999", "-0.0", "18446744073709551616", "9223372036854775807",
    "4294967296", "2147483647", "65536", "0.5",  "-9223372036854775808", "1e-320"};

// Of at most `width` bytes, which are put in either order.
void store(uint8_t* at, uint64_t value, size_t width, bool little) {
  for (size_t i = 0; i < width; ++i)
    at[little ? i : width - 1 - i] = static_cast<uint8_t>(value >> (8 * i));
}
uint64_t load(const uint8_t* at, size_t width, bool little) {
  uint64_t value = 0;
  for (size_t i = 0; i < width; ++i) value = value << 8 | at[little ? width - 1 - i : i];
  return value;
}

}  // namespace

Mutator::Mutator(std::vector<Bytes> good, std::vector<std::string> words, uint64_t seed)
    : good_(good.size()), sources_(std::move(good)), words_(std::move(words)), random_(seed) {
  for (const Bytes& input : sources_) longest_kept_ = std::max(longest_kept_, 2 * input.size());
}

Bytes Mutator::next() {
  Bytes input = pick_source();
  const size_t edits = 1 + pick(4);
  for (size_t i = 0; i < edits; ++i) edit(input);
  if (input.size() > kMaxBytes) input.resize(kMaxBytes);
  repair(input, random_);
  return input;
}

// Without a limit they grow from one to the next, and cost time for what repeats.
void Mutator::keep(const Bytes& input) {
  if (input.size() > longest_kept_) return;
  if (sources_.size() < good_ + kKept) return sources_.push_back(input);
  sources_[good_ + oldest_] = input;
  oldest_ = (oldest_ + 1) % kKept;
}

// Half of them begin with a good input: what was kept drifts away from anything that is meant.
const Bytes& Mutator::pick_source() {
  return sources_[pick(chance(random_, 50) ? good_ : sources_.size())];
}

void Mutator::edit(Bytes& input) {
  switch (pick(10)) {
    case 0:
    case 1:
      return change_bits(input);
    case 2:
    case 3:
    case 4:
      return change_number(input);
    case 5:
      return change_digits(input);
    case 6:
      return insert(input);
    case 7:
      return erase(input);
    case 8:
      return repeat(input);
    default:
      return splice(input);
  }
}

void Mutator::change_bits(Bytes& input) {
  if (input.empty()) return;
  uint8_t& byte = input[pick(input.size())];
  byte = static_cast<uint8_t>(chance(random_, 50) ? byte ^ 1U << pick(8) : random_());
}

// Powers of two and their neighbours, also as negative numbers; or any number.
uint64_t Mutator::pick_number() {
  if (chance(random_, 10)) return random_();
  const uint64_t number = (uint64_t{1} << pick(64)) + pick(3) - 1;
  return chance(random_, 25) ? ~number + 1 : number;
}

void Mutator::change_number(Bytes& input) {
  const size_t width = size_t{1} << pick(4);
  if (input.size() < width) return;
  uint8_t* at = input.data() + pick(input.size() - width + 1);
  const bool little = chance(random_, 50);
  const uint64_t near = load(at, width, little) + pick(33) - 16;
  store(at, chance(random_, 40) ? near : pick_number(), width, little);
}

// The next decimal number behind a random place.
void Mutator::change_digits(Bytes& input) {
  const auto is_digit = [](uint8_t byte) { return std::isdigit(byte) != 0; };
  const auto begin = std::find_if(input.begin() + static_cast<ptrdiff_t>(pick(input.size())),
                                  input.end(), is_digit);
  if (begin == input.end()) return;
  const auto end = std::find_if_not(begin, input.end(), is_digit);
  const std::string_view text =
      chance(random_, 50) ? kDecimals[pick(kDecimals.size())] : std::string_view();
  const std::string number = text.empty() ? std::to_string(pick(300)) : std::string(text);
  const auto at = input.erase(begin, end);
  input.insert(at, number.begin(), number.end());
}

void Mutator::insert(Bytes& input) {
  const auto at = input.begin() + static_cast<ptrdiff_t>(pick(input.size() + 1));
  if (!words_.empty() && chance(random_, 75)) {
    const std::string& word = words_[pick(words_.size())];
    input.insert(at, word.begin(), word.end());
  } else {
    input.insert(at, 1 + pick(16), static_cast<uint8_t>(random_()));
  }
}

// A few bytes, or, one time in four, all that follows.
void Mutator::erase(Bytes& input) {
  const size_t at = pick(input.size() + 1);
  const size_t rest = input.size() - at;
  const size_t count = chance(random_, 25) ? rest : std::min(rest, pick(24));
  const auto begin = input.begin() + static_cast<ptrdiff_t>(at);
  input.erase(begin, begin + static_cast<ptrdiff_t>(count));
}

// A part of the input, put behind itself once or many times.
void Mutator::repeat(Bytes& input) {
  const size_t at = pick(input.size() + 1);
  const size_t count = std::min(input.size() - at, 1 + pick(64));
  const Bytes part(input.begin() + static_cast<ptrdiff_t>(at),
                   input.begin() + static_cast<ptrdiff_t>(at + count));
  const size_t times = chance(random_, 80) ? 1 : 1 + pick(256);
  Bytes parts;
  for (size_t i = 0; i < times && parts.size() < kMaxBytes; ++i)
    parts.insert(parts.end(), part.begin(), part.end());
  input.insert(input.begin() + static_cast<ptrdiff_t>(at + count), parts.begin(), parts.end());
}

// A part of another input, over or between the bytes that are there.
void Mutator::splice(Bytes& input) {
  const Bytes& other = pick_source();
  const size_t from = pick(other.size() + 1);
  const size_t count = std::min(other.size() - from, 1 + pick(chance(random_, 50) ? 64 : 4096));
  const auto part = other.begin() + static_cast<ptrdiff_t>(from);
  const size_t at = pick(input.size() + 1);
  if (chance(random_, 50)) {
    input.insert(input.begin() + static_cast<ptrdiff_t>(at), part,
                 part + static_cast<ptrdiff_t>(count));
  } else {
    std::copy_n(part, std::min(count, input.size() - at),
                input.begin() + static_cast<ptrdiff_t>(at));
  }
}

}  // namespace flotilla::fuzz
