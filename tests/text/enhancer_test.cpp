// What surrounds the generation of a better prompt: the sampler, the chat, the reply's clean-up,
// and how each end of a reply is told; the cache of encoded prompts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "support/compare.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "text/errors.h"
#include "text/gemma_decoder.h"
#include "text/prompt_cache.h"
#include "text/prompt_enhancer.h"

namespace flotilla::text {
namespace {

using Ids = std::vector<int64_t>;

Ids draw(const Sampling& sampling, uint64_t seed, const at::Tensor& scores, int count) {
  TokenSampler sampler(sampling, seed);
  Ids ids;
  for (int i = 0; i < count; ++i) ids.push_back(sampler.pick(scores));
  return ids;
}

std::set<int64_t> distinct(const Ids& ids) { return {ids.begin(), ids.end()}; }

TEST(TokenSamplerTest, WithoutTemperatureTheBestTokenIsTaken) {
  EXPECT_EQ(draw({}, 1, at::tensor({0.5F, 2.0F, 1.0F, 2.0F}), 3), (Ids{1, 1, 1}));
}

TEST(TokenSamplerTest, SameSeedGivesTheSameTokens) {
  const at::Tensor scores = at::arange(32, at::kFloat) * 0.1;
  const Ids first = draw(kEnhanceSampling, 7, scores, 50);
  EXPECT_EQ(first, draw(kEnhanceSampling, 7, scores, 50));
  EXPECT_NE(first, draw(kEnhanceSampling, 8, scores, 50));
}

TEST(TokenSamplerTest, TopKAndTopPKeepTheBestOnly) {
  const at::Tensor scores = at::tensor({1.0F, 3.0F, 2.0F, 0.0F});
  EXPECT_EQ(distinct(draw({.temperature = 5.0, .top_k = 2}, 1, scores, 200)),
            (std::set<int64_t>{1, 2}));
  // Probabilities 0.64, 0.24, 0.09, 0.03: 0.7 needs two, 0.6 one.
  EXPECT_EQ(distinct(draw({.temperature = 1.0, .top_p = 0.7}, 1, scores, 200)),
            (std::set<int64_t>{1, 2}));
  EXPECT_EQ(distinct(draw({.temperature = 1.0, .top_p = 0.6}, 1, scores, 200)),
            (std::set<int64_t>{1}));
  EXPECT_EQ(distinct(draw({.temperature = 1.0}, 1, scores, 400)), (std::set<int64_t>{0, 1, 2, 3}));
}

TEST(TokenSamplerTest, TokensComeAsOftenAsTheirProbabilities) {
  const Ids ids = draw({.temperature = 1.0}, 3, at::tensor({0.0F, std::log(3.0F)}), 4000);
  EXPECT_NEAR(static_cast<double>(std::count(ids.begin(), ids.end(), 1)) / 4000.0, 0.75, 0.03);
}

TEST(TokenSamplerTest, ScoresThatAreNoNumbersAreRefused) {
  TokenSampler sampler({}, 0);
  EXPECT_THROW(sampler.pick(at::tensor({0.0F, std::nanf("")})), Error);
}

TEST(PromptEnhancerTest, LoopsAreSeenAndOrdinaryTextIsNot) {
  Ids counting(200);
  for (size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<int64_t>(i);
  EXPECT_FALSE(is_looping(counting));
  EXPECT_FALSE(is_looping({}));
  EXPECT_FALSE(is_looping({5, 5, 5, 5}));
  Ids stuck = counting;
  stuck.insert(stuck.end(), 24, 9);
  EXPECT_TRUE(is_looping(stuck));
  Ids verse = counting;
  for (int round = 0; round < 4; ++round) {
    for (int64_t i = 0; i < 10; ++i) verse.push_back(300 + i);
  }
  EXPECT_TRUE(is_looping(verse));
  verse[verse.size() - 15] = 1;
  EXPECT_FALSE(is_looping(verse));
}

TEST(PromptEnhancerTest, RepliesBecomeOnePlainLine) {
  EXPECT_EQ(tidy_reply("**A boat**\n\n sails\ton \u201Cwater\u201D. "),
            "A boat** sails on \"water\".");
  EXPECT_EQ(tidy_reply("# \u2014 It\u2019s late\u2026"), "It's late...");
  EXPECT_EQ(tidy_reply(std::string("a\0b\xEF\xBF\xBD\xC2\x85"
                                   "c",
                                   9)),
            "a b c");
  EXPECT_EQ(tidy_reply(" \n*** "), "");
  EXPECT_EQ(tidy_reply("\"Hi,\" she says."), "\"Hi,\" she says.");
  EXPECT_EQ(tidy_reply("Ein Bär läuft."), "Ein Bär läuft.");
}

TEST(PromptEnhancerTest, CutRepliesEndWithTheirLastSentence) {
  EXPECT_EQ(last_whole_sentence("A boat sails. It turns. The cam"), "A boat sails. It turns.");
  EXPECT_EQ(last_whole_sentence("She says \"Come!\" and th"), "She says \"Come!\"");
  EXPECT_EQ(last_whole_sentence("No. But then it goes on and on and on"),
            "No. But then it goes on and on and on");
}

TEST(PromptEnhancerTest, ChatHoldsTheWordsOfTheUserAndKnowsOfImages) {
  const std::string plain = enhance_chat("a boat", false);
  EXPECT_TRUE(plain.starts_with("<start_of_turn>user\n"));
  EXPECT_TRUE(mentions(plain, "a boat<end_of_turn>\n<start_of_turn>model\n"));
  EXPECT_NE(plain, enhance_chat("a boat", true));
  EXPECT_TRUE(mentions(enhance_chat("a boat", true), "picture"));
}

class TinyEnhancerTest : public ::testing::Test {
 protected:
  TinyEnhancerTest()
      : folder_(test::tiny_dir() / "gemma"),
        gemma_(std::make_shared<Gemma>(folder_, at::kFloat, at::kCPU)) {
    gemma_->load();
  }

  // Layers add nothing, and one token outshines the others, which are all alike.
  void say_always(int64_t token) {
    for (const auto& layer : gemma_->weights().layers) {
      layer.o_proj.zero_();
      layer.down_proj.zero_();
    }
    gemma_->weights().norm.zero_();
    gemma_->weights().embed_tokens.fill_(0.1);
    gemma_->weights().embed_tokens[token].fill_(50.0);
  }

  std::filesystem::path folder_;
  std::shared_ptr<Gemma> gemma_;
};

TEST_F(TinyEnhancerTest, SameSeedGivesTheSameText) {
  const PromptEnhancer enhancer(folder_, gemma_);
  const EnhancedPrompt first = enhancer.enhance("a boat", false, 5);
  const EnhancedPrompt again = enhancer.enhance("a boat", false, 5);
  EXPECT_EQ(first.text, again.text);
  EXPECT_EQ(first.num_tokens, again.num_tokens);
  EXPECT_LE(first.num_tokens, kEnhanceTokens);
  bool differs = false;
  for (uint64_t seed = 6; seed < 10 && !differs; ++seed) {
    const EnhancedPrompt other = enhancer.enhance("a boat", false, seed);
    differs = other.text != first.text || other.num_tokens != first.num_tokens;
  }
  EXPECT_TRUE(differs);
}

TEST_F(TinyEnhancerTest, LoopKeepsThePromptAsItWas) {
  say_always(Tokenizer(folder_).vocab_size() - 1);
  const EnhancedPrompt result = PromptEnhancer(folder_, gemma_).enhance("a boat", false, 5);
  EXPECT_EQ(result.end, EnhanceEnd::repeats);
  EXPECT_LT(result.num_tokens, 40);
  EXPECT_EQ(result.text, "a boat");
}

TEST_F(TinyEnhancerTest, TurnThatEndsAtOnceKeepsThePromptAsItWas) {
  say_always(*Tokenizer(folder_).find_piece("<end_of_turn>"));
  const EnhancedPrompt result = PromptEnhancer(folder_, gemma_).enhance("a boat", false, 5);
  EXPECT_EQ(result.num_tokens, 1);
  EXPECT_EQ(result.end, EnhanceEnd::empty);
  EXPECT_EQ(result.text, "a boat");
}

TEST_F(TinyEnhancerTest, TokensBecomeTextWithoutMarks) {
  const Tokenizer tokenizer(folder_);
  Ids ids = tokenizer.tokens_of("<start_of_turn>a boat\non <eos>water<end_of_turn>");
  EXPECT_EQ(ids.front(), tokenizer.bos_id());
  EXPECT_EQ(tokenizer.text_of(ids), "a boat\non water");
  EXPECT_FALSE(tokenizer.find_piece("<no such piece>").has_value());
}

PromptEmbedding numbered(double value) {
  PromptEmbedding embedding;
  embedding.video_context = at::full({1}, value);
  return embedding;
}

TEST(PromptCacheTest, KeepsTheLastUsedPromptsOfEachModel) {
  PromptCache cache(2);
  const PromptKey a{"gemma", "file", "a", at::kFloat};
  const PromptKey b{"gemma", "file", "b", at::kFloat};
  EXPECT_EQ(cache.find(a), nullptr);
  cache.put(a, numbered(1));
  cache.put(b, numbered(2));
  ASSERT_NE(cache.find(a), nullptr);
  EXPECT_EQ(cache.find(a)->video_context.item<double>(), 1);
  cache.put({"gemma", "file", "c", at::kFloat}, numbered(3));
  EXPECT_EQ(cache.find(b), nullptr);  // the one not used for longest
  EXPECT_NE(cache.find(a), nullptr);
  EXPECT_EQ(cache.size(), 2);
  EXPECT_EQ(cache.find({"other", "file", "a", at::kFloat}), nullptr);
  EXPECT_EQ(cache.find({"gemma", "other", "a", at::kFloat}), nullptr);
  EXPECT_EQ(cache.find({"gemma", "file", "a", at::kBFloat16}), nullptr);
  cache.put(a, numbered(4));
  EXPECT_EQ(cache.size(), 2);
  EXPECT_EQ(cache.find(a)->video_context.item<double>(), 4);
}

}  // namespace
}  // namespace flotilla::text
