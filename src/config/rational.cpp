#include "config/rational.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace flotilla::config {
namespace {

__extension__ typedef __int128 Wide;  // not ISO C++, but in every compiler we build with

Wide wide_gcd(Wide a, Wide b) {
  a = a < 0 ? -a : a;
  while (b != 0) {
    const Wide rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

Rational narrow(Wide numerator, Wide denominator) {
  const Wide divisor = wide_gcd(numerator, denominator < 0 ? -denominator : denominator);
  if (divisor != 0) {
    numerator /= divisor;
    denominator /= divisor;
  }
  constexpr Wide kLimit = std::numeric_limits<int64_t>::max();
  FLOTILLA_ASSERT(numerator <= kLimit && numerator >= -kLimit && denominator <= kLimit &&
                  denominator >= -kLimit);
  return {static_cast<int64_t>(numerator), static_cast<int64_t>(denominator)};
}

// One to kMaxRateDigits decimal digits.
std::optional<int64_t> parse_digits(std::string_view text) {
  if (text.empty() || text.size() > kMaxRateDigits) return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

// The NTSC rate that `scaled / scale` is a rounding of, when there is one: 23.976 -> 24000/1001.
std::optional<Rational> ntsc_rate(int64_t scaled, int64_t scale) {
  if (scale < 100) return std::nullopt;  // one digit after the point says too little
  for (const int64_t whole : {24, 30, 48, 60, 120}) {
    const int64_t rounded = (whole * 1000 * scale * 2 + 1001) / (2 * 1001);
    if (scaled == rounded) return Rational(whole * 1000, 1001);
  }
  return std::nullopt;
}

std::optional<Rational> parse_decimal(std::string_view text) {
  const size_t point = text.find('.');
  const auto whole = parse_digits(text.substr(0, point));
  if (!whole) return std::nullopt;
  if (point == std::string_view::npos) return Rational(*whole);
  std::string_view digits = text.substr(point + 1);
  while (digits.size() > 1 && digits.back() == '0') digits.remove_suffix(1);
  const auto part = parse_digits(digits);
  if (!part) return std::nullopt;
  int64_t scale = 1;
  for (size_t i = 0; i < digits.size(); ++i) scale *= 10;
  const int64_t scaled = *whole * scale + *part;
  if (const auto ntsc = ntsc_rate(scaled, scale)) return ntsc;
  return Rational(scaled, scale);
}

}  // namespace

Rational::Rational(int64_t numerator, int64_t denominator) {
  FLOTILLA_ASSERT(denominator != 0);
  const int64_t divisor = std::max<int64_t>(1, std::gcd(numerator, denominator));
  const int64_t sign = denominator < 0 ? -1 : 1;
  numerator_ = sign * (numerator / divisor);
  denominator_ = sign * (denominator / divisor);
}

double Rational::to_double() const {
  return static_cast<double>(numerator_) / static_cast<double>(denominator_);
}

std::string Rational::to_string() const {
  return denominator_ == 1 ? fmt::format("{}", numerator_)
                           : fmt::format("{}/{}", numerator_, denominator_);
}

Rational operator*(const Rational& a, const Rational& b) {
  return narrow(Wide(a.numerator_) * b.numerator_, Wide(a.denominator_) * b.denominator_);
}

Rational operator/(const Rational& a, const Rational& b) {
  return narrow(Wide(a.numerator_) * b.denominator_, Wide(a.denominator_) * b.numerator_);
}

std::strong_ordering operator<=>(const Rational& a, const Rational& b) {
  const Wide left = Wide(a.numerator_) * b.denominator_;
  const Wide right = Wide(b.numerator_) * a.denominator_;
  if (left == right) return std::strong_ordering::equal;
  return left < right ? std::strong_ordering::less : std::strong_ordering::greater;
}

std::optional<Rational> parse_frame_rate(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return parse_decimal(text);
  const auto numerator = parse_digits(text.substr(0, slash));
  const auto denominator = parse_digits(text.substr(slash + 1));
  if (!numerator || !denominator || *denominator == 0) return std::nullopt;
  return Rational(*numerator, *denominator);
}

}  // namespace flotilla::config
