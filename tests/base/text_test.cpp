#include "base/text.h"

#include <gtest/gtest.h>

#include "base/base64.h"

namespace flotilla {
namespace {

TEST(TextTest, NearestWordFindsTyposAndNothingElse) {
  const std::vector<std::string> words = {"num_frames", "frame_rate", "width"};
  EXPECT_EQ(nearest_word("num_frame", words), "num_frames");
  EXPECT_EQ(nearest_word("widht", words), "width");
  EXPECT_EQ(nearest_word("banana", words), "");
  EXPECT_EQ(nearest_word("", words), "");
}

TEST(TextTest, HumanUnits) {
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536.0 * 1024), "1.5 MiB");
  EXPECT_EQ(human_duration(1.25), "1.2 s");
  EXPECT_EQ(human_duration(185), "3 min 05 s");
  EXPECT_EQ(human_duration(7800), "2 h 10 min");
}

TEST(TextTest, Utf8IsCheckedStrictly) {
  EXPECT_TRUE(is_valid_utf8("plain, \xC3\xA4, \xE2\x82\xAC, \xF0\x9F\x9A\x80"));
  EXPECT_FALSE(is_valid_utf8("\xC3"));              // cut off
  EXPECT_FALSE(is_valid_utf8("\xC0\xAF"));          // overlong
  EXPECT_FALSE(is_valid_utf8("\xED\xA0\x80"));      // surrogate
  EXPECT_FALSE(is_valid_utf8("\xF4\x90\x80\x80"));  // above U+10FFFF
}

TEST(TextTest, ExcerptCutsAtCharactersAndShowsControls) {
  EXPECT_EQ(excerpt("a\nb"), "a\\x0ab");
  EXPECT_EQ(excerpt("\xC3\xA4\xC3\xA4\xC3\xA4", 3), "\xC3\xA4\xC3\xA4...");
  EXPECT_EQ(excerpt("\xFF"), "\\xff");
}

TEST(TextTest, ShapeText) {
  EXPECT_EQ(shape_text(std::vector<int64_t>{1, 24, 128}), "[1, 24, 128]");
}

TEST(TextTest, LowerCaseLeavesOtherLettersAlone) {
  EXPECT_EQ(to_lower(".Y4M \xC3\x84@[z"), ".y4m \xC3\x84@[z");
}

// The vectors of RFC 4648, and bytes above 127.
TEST(TextTest, Base64PadsToFourLetters) {
  const auto encode = [](std::string_view text) {
    return base64({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  EXPECT_EQ(encode(""), "");
  EXPECT_EQ(encode("f"), "Zg==");
  EXPECT_EQ(encode("fo"), "Zm8=");
  EXPECT_EQ(encode("foo"), "Zm9v");
  EXPECT_EQ(encode("foobar"), "Zm9vYmFy");
  EXPECT_EQ(encode("\xff\xfe\xfb"), "//77");
}

}  // namespace
}  // namespace flotilla
