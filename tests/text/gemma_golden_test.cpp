// Token ids and hidden states of the tiny Gemma folder against the reference.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/golden.h"
#include "text/gemma.h"
#include "text/tokenizer.h"

namespace flotilla::text {
namespace {

constexpr double kAtol = 5e-5;

class GemmaGoldenTest : public ::testing::Test {
 protected:
  GemmaGoldenTest() : gemma_(test::tiny_dir() / "gemma", at::kFloat, at::kCPU) {
    gemma_.load();
    for (const auto& prompt : golden_.params().at("prompts")) {
      prompts_.push_back(prompt.get<std::string>());
    }
  }

  // Every stored state of prompt `index`, compared with row `sample` of a forward.
  void expect_states(const GemmaStates& result, size_t index, int64_t sample) {
    ASSERT_EQ(result.states.size(), golden_.names(fmt::format("prompt{}.hidden.", index)).size());
    const at::Tensor tokens = result.mask[sample].nonzero().squeeze(-1);
    for (size_t i = 0; i < result.states.size(); ++i) {
      const std::string name = fmt::format("prompt{}.hidden.{}", index, i);
      const at::Tensor expected = golden_[name];
      const at::Tensor rows = result.states[i][sample].index_select(0, tokens);
      EXPECT_TRUE(test::all_close(rows.narrow(0, 0, expected.size(0)), expected, kAtol)) << name;
    }
  }

  test::Golden golden_{"gemma"};
  Gemma gemma_;
  std::vector<std::string> prompts_;
};

TEST_F(GemmaGoldenTest, TokenIdsAndMasksMatchTheReference) {
  const Tokenizer tokenizer(test::tiny_dir() / "gemma");
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const TokenizedPrompt tokens = tokenizer.encode(prompts_[i]);
    const at::Tensor mask = golden_[fmt::format("prompt{}.attention_mask", i)];
    EXPECT_TRUE(test::same_bytes(tokens.ids[0], golden_[fmt::format("prompt{}.input_ids", i)]));
    EXPECT_TRUE(test::same_bytes(tokens.mask[0], mask));
    EXPECT_EQ(tokens.num_tokens, mask.sum().item<int64_t>());
  }
}

TEST_F(GemmaGoldenTest, HiddenStatesMatchTheReference) {
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const at::Tensor ids = golden_[fmt::format("prompt{}.input_ids", i)].unsqueeze(0);
    const at::Tensor mask = golden_[fmt::format("prompt{}.attention_mask", i)].unsqueeze(0);
    expect_states(gemma_.forward(ids, mask), i, 0);
  }
}

TEST_F(GemmaGoldenTest, PromptsOfUnequalLengthInOneBatchDoNotSeeEachOthersPadding) {
  std::vector<at::Tensor> ids;
  std::vector<at::Tensor> masks;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    ids.push_back(golden_[fmt::format("prompt{}.input_ids", i)]);
    masks.push_back(golden_[fmt::format("prompt{}.attention_mask", i)]);
  }
  const GemmaStates result = gemma_.forward(at::stack(ids), at::stack(masks));
  for (size_t i = 0; i < prompts_.size(); ++i) expect_states(result, i, static_cast<int64_t>(i));
}

TEST_F(GemmaGoldenTest, WholePaddedRowGivesTheSameStates) {
  // The row with nothing left out: one more prompt in the batch fills all columns.
  const at::Tensor ids = golden_["prompt0.input_ids"];
  const at::Tensor full = at::full_like(ids, 3);
  const GemmaStates result = gemma_.forward(
      at::stack({ids, full}), at::stack({golden_["prompt0.attention_mask"], at::ones_like(full)}));
  EXPECT_EQ(result.mask.size(1), ids.size(0));
  expect_states(result, 0, 0);
}

TEST_F(GemmaGoldenTest, BfloatStatesStayNearTheFloatOnes) {
  Gemma half(test::tiny_dir() / "gemma", at::kBFloat16, at::kCPU);
  half.load();
  const at::Tensor ids = golden_["prompt0.input_ids"].unsqueeze(0);
  const at::Tensor mask = golden_["prompt0.attention_mask"].unsqueeze(0);
  const at::Tensor last = half.forward(ids, mask).states.back();
  EXPECT_EQ(last.scalar_type(), at::kBFloat16);
  const at::Tensor expected = gemma_.forward(ids, mask).states.back();
  // bfloat16 keeps 8 bits; a wrong scale or rotation is off by the size of the values themselves.
  const double error = (last.to(at::kFloat) - expected).norm().item<double>();
  EXPECT_LT(error, 0.1 * expected.norm().item<double>());
}

}  // namespace
}  // namespace flotilla::text
