#include "config/rational.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace flotilla::config {
namespace {

TEST(RationalTest, IsAlwaysInLowestTerms) {
  EXPECT_EQ(Rational(48, 2), Rational(24));
  EXPECT_EQ(Rational(3, -6), Rational(-1, 2));
  EXPECT_EQ(Rational(0, 7).denominator(), 1);
  EXPECT_THROW(Rational(1, 0), Error);
}

TEST(RationalTest, ComputesExactly) {
  const Rational rate(24000, 1001);
  EXPECT_EQ(Rational(121) / rate, Rational(121 * 1001, 24000));
  EXPECT_EQ(rate * Rational(1001, 24000), Rational(1));
  EXPECT_LT(rate, Rational(24));
  EXPECT_GT(Rational(-1, 3), Rational(-1, 2));
  EXPECT_DOUBLE_EQ(Rational(25, 2).to_double(), 12.5);
}

TEST(RationalTest, RefusesResultsThatDoNotFit) {
  const Rational huge(std::numeric_limits<int64_t>::max());
  EXPECT_THROW(huge * huge, Error);
  EXPECT_EQ(huge * Rational(1, 2) / Rational(1, 2), huge);
  EXPECT_THROW(Rational(1) / Rational(0), Error);
}

TEST(RationalTest, PrintsFractionsOnlyWhereNeeded) {
  EXPECT_EQ(Rational(24).to_string(), "24");
  EXPECT_EQ(Rational(24000, 1001).to_string(), "24000/1001");
}

TEST(FrameRateTest, ReadsIntegersDecimalsAndFractions) {
  EXPECT_EQ(parse_frame_rate("24"), Rational(24));
  EXPECT_EQ(parse_frame_rate("12.5"), Rational(25, 2));
  EXPECT_EQ(parse_frame_rate("24.000"), Rational(24));
  EXPECT_EQ(parse_frame_rate("24000/1001"), Rational(24000, 1001));
  EXPECT_EQ(parse_frame_rate("50/2"), Rational(25));
}

TEST(FrameRateTest, TakesShortFormsForNtscRates) {
  for (const char* text : {"23.976", "23.98", "23.9760", "23.976024", "23.976023976"}) {
    EXPECT_EQ(parse_frame_rate(text), Rational(24000, 1001)) << text;
  }
  EXPECT_EQ(parse_frame_rate("29.97"), Rational(30000, 1001));
  EXPECT_EQ(parse_frame_rate("59.94"), Rational(60000, 1001));
  EXPECT_EQ(parse_frame_rate("47.952"), Rational(48000, 1001));
  EXPECT_EQ(parse_frame_rate("119.88"), Rational(120000, 1001));
  EXPECT_EQ(parse_frame_rate("24.98"), Rational(1249, 50)) << "25 is no NTSC rate";
  EXPECT_EQ(parse_frame_rate("23.97"), Rational(2397, 100)) << "not a rounding of 24000/1001";
}

TEST(FrameRateTest, RefusesEverythingElse) {
  for (const char* text : {"", ".", "24.", ".5", "-24", "+24", "1e3", "24/0", "24/", "/2", "2 4",
                           "x", "24/1/1", "1234567890", "0.1234567891", "24.0/1"}) {
    EXPECT_FALSE(parse_frame_rate(text)) << text;
  }
}

}  // namespace
}  // namespace flotilla::config
