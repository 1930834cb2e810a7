// Exact fractions for frame rates: 24000/1001 stays 24000/1001 on its way from the job file to the
// container, and durations are computed without rounding.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flotilla::config {

// Always in lowest terms with a positive denominator, so equal values are equal members.
class Rational {
 public:
  Rational() = default;
  // Errors (ErrorKind::internal): a zero denominator.
  Rational(int64_t numerator, int64_t denominator = 1);

  int64_t numerator() const { return numerator_; }
  int64_t denominator() const { return denominator_; }
  double to_double() const;
  // "24" or "24000/1001".
  std::string to_string() const;

  // Errors (ErrorKind::internal): a result that does not fit 64 bits; division by zero.
  friend Rational operator*(const Rational& a, const Rational& b);
  friend Rational operator/(const Rational& a, const Rational& b);
  friend bool operator==(const Rational& a, const Rational& b) = default;
  friend std::strong_ordering operator<=>(const Rational& a, const Rational& b);

 private:
  int64_t numerator_ = 0;
  int64_t denominator_ = 1;
};

// Of each number in the text of a frame rate; larger ones could overflow on their way to a
// fraction.
inline constexpr size_t kMaxRateDigits = 9;

// A frame rate as people write it: "24", "12.5", "24000/1001". The usual short forms of NTSC rates
// (23.976, 29.97, 59.94 and more or fewer digits of them) mean n * 1000/1001 exactly.
// Nothing for any other text.
std::optional<Rational> parse_frame_rate(std::string_view text);

}  // namespace flotilla::config
