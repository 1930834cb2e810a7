// Damaged job files: a few thousand mutations of good ones must be accepted or refused with a
// config error, quickly, and never end in anything else.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "config/job_text.h"
#include "config/validate.h"
#include "config/writer.h"

namespace flotilla::config {
namespace {

const std::string kSeedText = test::kTwoStageJob + R"(negative_prompt: 'blur'
seed: 10
video: {width: 128, height: 192, num_frames: 9, frame_rate: "24000/1001"}
images:
  - {path: a.png, frame: 0}
  - path: b.png
    frame: 8
stage_1:
  sigmas: [1.0, 0.5, 0]
  guidance: {video: {cfg: 2, stg_blocks: [1, 2]}}
decoder:
  tiling: {spatial: {size: 512, overlap: 64}}
output: {path: "o.mp4", audio: true}
)";

constexpr std::string_view kPieces[] = {"\n",
                                        ": ",
                                        "- ",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "\"",
                                        "'",
                                        "&a ",
                                        "*a",
                                        "!!int ",
                                        "|\n",
                                        ">\n",
                                        "#",
                                        "---\n",
                                        "...\n",
                                        "\t",
                                        "  ",
                                        "<<: ",
                                        "? ",
                                        "~",
                                        "null",
                                        "1e999",
                                        "-1",
                                        "99999999999999999999",
                                        "\\",
                                        "\xff",
                                        "\xef\xbb\xbf",
                                        "\r\n",
                                        "%TAG ! x\n",
                                        ",",
                                        "@",
                                        "`",
                                        "auto",
                                        "${A}"};

std::string mutate(std::string text, std::mt19937& random) {
  const auto pick = [&](size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(random);
  };
  const size_t edits = 1 + pick(4);
  for (size_t i = 0; i < edits; ++i) {
    const size_t at = pick(text.size() + 1);
    const size_t length = std::min(text.size() - at, pick(12));
    switch (pick(5)) {
      case 0:
        text.insert(at, kPieces[pick(std::size(kPieces))]);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(pick(text.size() + 1), pick(40)));
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(pick(256));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

// True when the text is a job; then it must also survive printing.
bool survives(const std::string& text, const std::vector<Override>& overrides = {}) {
  try {
    const LoadedJob loaded = load_job_text(text, "fuzz", "/jobs", overrides);
    EXPECT_EQ(load_job_text(to_yaml(loaded.job), "printed", "/").job, loaded.job) << text;
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config) << error.what() << "\n" << text;
    EXPECT_FALSE(error.message().empty());
    return false;
  }
}

TEST(ConfigFuzzTest, DamagedTextIsReadOrRefused) {
  ASSERT_TRUE(survives(kSeedText));
  std::mt19937 random(20240607);
  int accepted = 0;
  constexpr int kTries = 6000;
  for (int i = 0; i < kTries; ++i) accepted += survives(mutate(kSeedText, random)) ? 1 : 0;
  EXPECT_GT(accepted, kTries / 100) << "the mutations are too wild to say anything";
  EXPECT_LT(accepted, kTries);
}

TEST(ConfigFuzzTest, DamagedOverridesAreReadOrRefused) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text = mutate("stage_1.guidance.video={cfg: 2, stg_blocks: [1, 2]}", random);
    Override change;
    try {
      change = parse_set(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      continue;
    }
    survives(kSeedText, {change});
  }
}

TEST(ConfigFuzzTest, TextMadeToBeSlowIsNot) {
  const auto repeat = [](std::string_view piece) {
    std::string text;
    while (text.size() + piece.size() < (1 << 20)) text += piece;
    return text;
  };
  const auto start = std::chrono::steady_clock::now();
  int unknown = 0;
  std::string keys;
  while (keys.size() < (1 << 20) - 16) keys.append(std::to_string(unknown++)).append(":\n");
  for (const std::string& text :
       {repeat("a"), repeat("["), repeat("{"), repeat("- "), repeat("? "), repeat("\""),
        repeat("{}, "), "images: [" + repeat("{},").substr(9), "prompt: [" + repeat("x,").substr(9),
        keys, repeat("&a [*a, *a]\n"), repeat("x: "), repeat("a:\n "), repeat("'"), repeat("#"),
        repeat("!"), repeat("%"), repeat("\n"), repeat("k: v\n")}) {
    survives(text);
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed.count(), 120.0);
}

}  // namespace
}  // namespace flotilla::config
