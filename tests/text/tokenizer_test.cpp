// Tokenizer rules: exactly one BOS, stripping, cutting, and what it refuses.
#include "text/tokenizer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "text/errors.h"

namespace flotilla::text {
namespace {

class TokenizerTest : public ::testing::Test {
 protected:
  // The tokens without padding.
  std::vector<int64_t> ids(std::string_view prompt) {
    const TokenizedPrompt tokens = tokenizer_.encode(prompt);
    const at::Tensor kept =
        tokens.ids[0].narrow(0, kPromptTokens - tokens.num_tokens, tokens.num_tokens);
    return {kept.data_ptr<int64_t>(), kept.data_ptr<int64_t>() + kept.numel()};
  }

  // The tokens behind the BOS.
  std::vector<int64_t> body(std::string_view prompt) {
    auto all = ids(prompt);
    all.erase(all.begin());
    return all;
  }

  Tokenizer tokenizer_{test::tiny_dir() / "gemma"};
};

TEST_F(TokenizerTest, EveryPromptHasExactlyOneBosInFront) {
  for (const std::string_view prompt : {"", " \n", "a", "<bos>", "<bos>a", "<bos> a <bos><bos>b"}) {
    const auto tokens = ids(prompt);
    EXPECT_EQ(tokens.front(), tokenizer_.bos_id()) << prompt;
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), tokenizer_.bos_id()), 1) << prompt;
  }
}

TEST_F(TokenizerTest, LiteralBosAddsNothing) {
  EXPECT_EQ(ids("<bos>"), ids(""));
  EXPECT_EQ(ids("<bos>a red fox"), ids("a red fox"));
  // It still parts the text, as in the reference: no merge reaches over it.
  auto expected = ids("red");
  for (const int64_t id : body("fox")) expected.push_back(id);
  EXPECT_EQ(ids("red<bos>fox"), expected);
}

TEST_F(TokenizerTest, NamesOfControlPiecesBecomeThosePieces) {
  const auto eos = body("<eos>");
  ASSERT_EQ(eos.size(), 1U);
  auto expected = ids("a");
  expected.push_back(eos[0]);
  for (const int64_t id : body("b")) expected.push_back(id);
  EXPECT_EQ(ids("a<eos>b"), expected);
  EXPECT_EQ(body("<pad>").size(), 1U);
  EXPECT_EQ(body("<start_of_turn>").size(), 1U);
  EXPECT_GT(body("<0x41>").size(), 1U) << "byte pieces are not names";
}

TEST_F(TokenizerTest, WhitespaceAtBothEndsIsStripped) {
  // No-break space, ideographic space, line separator: what Python's str.strip takes.
  EXPECT_EQ(ids("\u00A0\u3000\t red  fox \u2028\r\n"), ids("red  fox"));
  EXPECT_NE(ids("red  fox"), ids("red fox")) << "inside, spaces count";
  EXPECT_NE(ids("\u200Bred"), ids("red")) << "a zero-width space is no whitespace";
}

TEST_F(TokenizerTest, ShortPromptIsPaddedOnTheLeft) {
  const TokenizedPrompt tokens = tokenizer_.encode("a");
  EXPECT_EQ(tokens.ids.sizes(), at::IntArrayRef({1, kPromptTokens}));
  EXPECT_EQ(tokens.ids.scalar_type(), at::kLong);
  EXPECT_EQ(tokens.mask.sum().item<int64_t>(), tokens.num_tokens);
  EXPECT_EQ(tokens.mask[0][kPromptTokens - tokens.num_tokens].item<int64_t>(), 1);
  EXPECT_EQ(tokens.num_dropped, 0);
  EXPECT_EQ(tokens.first_dropped_word, "");
}

TEST_F(TokenizerTest, LongPromptIsCutAndSaysWhereItWasCut) {
  // Words that name their place; the kept tokens are a prefix of the text.
  std::string prompt;
  for (int i = 0; i < 3000; ++i) prompt += fmt::format("w{} ", i);
  const TokenizedPrompt tokens = tokenizer_.encode(prompt);
  EXPECT_EQ(tokens.num_tokens, kPromptTokens);
  EXPECT_GT(tokens.num_dropped, 0);
  EXPECT_EQ(tokens.mask.sum().item<int64_t>(), kPromptTokens);
  ASSERT_TRUE(tokens.first_dropped_word.starts_with("w")) << tokens.first_dropped_word;

  // With the text up to that word everything fits, with the word it does not.
  const size_t at = prompt.find(tokens.first_dropped_word + " ");
  EXPECT_EQ(tokenizer_.encode(prompt.substr(0, at)).num_dropped, 0);
  const size_t behind = at + tokens.first_dropped_word.size();
  EXPECT_GT(tokenizer_.encode(prompt.substr(0, behind)).num_dropped, 0);
}

TEST_F(TokenizerTest, PromptOfExactlyTheLengthIsNotCut) {
  // The name of a control piece is one token, whatever stands beside it.
  std::string prompt;
  for (int64_t i = 1; i < kPromptTokens; ++i) prompt += "<eos>";
  EXPECT_EQ(tokenizer_.encode(prompt).num_dropped, 0);
  EXPECT_EQ(tokenizer_.encode(prompt).num_tokens, kPromptTokens);
  const TokenizedPrompt longer = tokenizer_.encode(prompt + " end");
  EXPECT_GT(longer.num_dropped, 0);
  EXPECT_EQ(longer.first_dropped_word, "end");
}

TEST_F(TokenizerTest, InvalidUtf8IsRefused) {
  try {
    tokenizer_.encode("a red \xFF fox");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_TRUE(mentions(error.message(), "UTF-8"));
  }
}

TEST(TokenizerFileTest, MissingModelNamesTheFolderAndTheFile) {
  const test::TempDir dir;
  const std::string message = input_error([&] { const Tokenizer tokenizer(dir.path()); });
  EXPECT_TRUE(mentions(message, dir.path().string())) << message;
  EXPECT_TRUE(mentions(message, "tokenizer.model")) << message;
}

TEST(TokenizerFileTest, LfsPointerAndDamagedModelAreRefused) {
  const test::TempDir dir;
  test::write_file(dir / "tokenizer.model",
                   "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4689074\n");
  const auto open = [&] { const Tokenizer tokenizer(dir.path()); };
  EXPECT_TRUE(mentions(input_error(open), "Git-LFS"));
  for (const char* text : {"", "not a model", "\x0A\xFF\xFF\xFF\xFF\x0F"}) {
    test::write_file(dir / "tokenizer.model", text);
    EXPECT_TRUE(mentions(input_error(open), "not a SentencePiece model")) << text;
  }
}

TEST(TokenizerFolderTest, FolderInPlaceOfTheModelIsNamed) {
  const test::TempDir dir;
  std::filesystem::create_directories(dir / "tokenizer.model");
  const std::string message = input_error([&] { Tokenizer{dir.path()}; });
  EXPECT_TRUE(
      mentions(message, (dir / "tokenizer.model").string() + "\" is not a file but a folder"))
      << message;
}

}  // namespace
}  // namespace flotilla::text
