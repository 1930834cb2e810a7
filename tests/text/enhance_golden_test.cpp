// Greedy continuations of the tiny Gemma, token for token as Hugging Face's generate() makes them
// (scripts/make_enhance_golden.py).
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/golden.h"
#include "text/gemma_decoder.h"
#include "text/tokenizer.h"

namespace flotilla::text {
namespace {

using Ids = std::vector<int64_t>;

// Of the scores; the smallest lead of a best token in the file is far above it.
constexpr double kAtol = 5e-5;

class EnhanceGoldenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(test::golden_dir() / "enhance_greedy.json");
    if (!file) GTEST_SKIP() << "this golden set has no enhance_greedy.json";
    golden_ = nlohmann::json::parse(file);
    gemma_ = std::make_unique<Gemma>(test::tiny_dir() / "gemma", at::kFloat, at::kCPU);
    gemma_->load();
  }

  nlohmann::json golden_;
  std::unique_ptr<Gemma> gemma_;
};

TEST_F(EnhanceGoldenTest, ChatsAreTokenizedAsTheReferenceDoes) {
  const Tokenizer tokenizer(test::tiny_dir() / "gemma");
  for (const auto& item : golden_.at("cases")) {
    EXPECT_EQ(tokenizer.tokens_of(item.at("prompt").get<std::string>()),
              item.at("input_ids").get<std::vector<int64_t>>());
  }
}

TEST_F(EnhanceGoldenTest, GreedyAnswersAreTheReferenceTokenForToken) {
  bool left_window = false;
  for (const auto& item : golden_.at("cases")) {
    if (item.at("no_repeat").get<bool>()) continue;
    const auto prompt = item.at("input_ids").get<Ids>();
    const auto expected = item.at("new_ids").get<Ids>();
    TokenSampler greedy({}, /*seed=*/0);
    EXPECT_EQ(generate(*gemma_,
                       {.prompt = prompt,
                        .max_tokens = static_cast<int64_t>(expected.size()),
                        .num_pieces = gemma_->config().vocab_size,
                        .is_done = [](const Ids&) { return false; }},
                       greedy),
              expected);
    left_window |= static_cast<int64_t>(prompt.size()) > gemma_->config().sliding_window;
    EXPECT_GT(static_cast<int64_t>(expected.size()), gemma_->config().sliding_window);
  }
  EXPECT_TRUE(left_window);  // by a prompt too: the masked path of sliding layers
}

TEST_F(EnhanceGoldenTest, BestScoresOfUnusedTokensMatchTheReference) {
  for (const auto& item : golden_.at("cases")) {
    if (!item.at("no_repeat").get<bool>()) continue;
    auto used = item.at("input_ids").get<Ids>();
    const auto expected = item.at("new_ids").get<Ids>();
    GemmaDecoder decoder(*gemma_, static_cast<int64_t>(used.size() + expected.size()));
    at::Tensor scores = decoder.next(used);
    for (size_t i = 0; i < expected.size(); ++i) {
      scores.index_fill_(0, at::tensor(used, at::kLong), -std::numeric_limits<double>::infinity());
      ASSERT_EQ(scores.argmax().item<int64_t>(), expected[i]) << "token " << i;
      EXPECT_NEAR(scores.max().item<double>(), item.at("best_scores")[i].get<double>(), kAtol);
      used.push_back(expected[i]);
      scores = decoder.next({expected[i]});
    }
  }
}

}  // namespace
}  // namespace flotilla::text
