// Who reads tokens in which form, and that a layer gives the same bytes however its input was made.
#include "ops/layer_input.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/feed_forward.h"
#include "ops/norm.h"
#include "support/compare.h"

namespace flotilla {
namespace {

using ops::InputForms;
using ops::LinearWeights;

constexpr InputForms kQuantised{.plain = false, .quantised = true};

LinearWeights plain_layer(int64_t in, int64_t out) { return {at::randn({out, in}), {}, {}}; }

LinearWeights scaled_layer(int64_t in, int64_t out) {
  const ops::QuantisedRows rows = ops::quantise_rows(at::randn({out, in}));
  return {rows.values, at::randn({out}), rows.scales.squeeze(1)};
}

TEST(InputFormsTest, AreThoseThatTheLayersRead) {
  const LinearWeights plain = plain_layer(16, 16);
  const LinearWeights scaled = scaled_layer(16, 16);
  const LinearWeights none;
  const auto forms = [](InputForms of) { return std::pair(of.plain, of.quantised); };
  EXPECT_EQ(forms(ops::forms_read_by({&plain, &none})), std::pair(true, false));
  EXPECT_EQ(forms(ops::forms_read_by({&scaled, &none})), std::pair(false, true));
  EXPECT_EQ(forms(ops::forms_read_by({&plain, &scaled})), std::pair(true, true));
  EXPECT_EQ(forms(ops::forms_read_by({&plain}) | kQuantised), std::pair(true, true));
  const ops::FixedRowBlocks fixed;
  EXPECT_EQ(forms(ops::forms_read_by({&scaled})), std::pair(true, false));
}

TEST(LayerInputTest, EveryFormGivesTheSameProduct) {
  const at::Tensor x = at::randn({2, 7, 32});
  const LinearWeights plain = plain_layer(32, 24);
  const LinearWeights scaled = scaled_layer(32, 24);
  const ops::LayerInput both = ops::make_layer_input(x, {.plain = true, .quantised = true});
  EXPECT_TRUE(test::same_bytes(ops::linear(both, plain), ops::linear(x, plain)));
  EXPECT_TRUE(test::same_bytes(ops::linear(both, scaled), ops::linear(x, scaled)));
  const ops::LayerInput quantised = ops::make_layer_input(x, kQuantised);
  EXPECT_FALSE(quantised.plain.defined());
  EXPECT_TRUE(test::same_bytes(ops::linear(quantised, scaled), ops::linear(x, scaled)));
}

TEST(LayerInputTest, ModulationsHaveTheFormsThatAreAskedFor) {
  const at::Tensor x = at::randn({2, 5, 48});
  const at::Tensor update = at::randn({2, 5, 48});
  const at::Tensor rows = at::randn({2, 4, 48});
  const std::vector<ops::TokenModulation> modulations = {
      {rows.select(1, 0), rows.select(1, 1), {}, {.plain = true, .quantised = true}},
      {rows.select(1, 2), rows.select(1, 3), {}, kQuantised}};
  const auto residual = ops::residual_norm_modulate(x, update, {}, 1e-6, modulations);
  for (size_t m = 0; m < 2; ++m) {
    const at::Tensor plain = ops::rms_norm_modulate_aten(residual.x, 1e-6, modulations[m]);
    const ops::QuantisedRows expected = ops::quantise_rows_aten(plain);
    const ops::LayerInput& actual = residual.modulated[m];
    EXPECT_EQ(actual.plain.defined(), m == 0);
    EXPECT_TRUE(
        test::same_bytes(actual.quantised.values.view(at::kByte), expected.values.view(at::kByte)));
    EXPECT_TRUE(test::same_bytes(actual.quantised.scales, expected.scales));
  }
  const auto text = ops::modulate(x, modulations[1]);
  EXPECT_FALSE(text.plain.defined());
  EXPECT_TRUE(text.quantised.defined());
}

TEST(LayerInputTest, FeedForwardIsItsTwoLayers) {
  const at::Tensor x = at::randn({2, 5, 32});
  for (const bool first : {false, true}) {
    for (const bool second : {false, true}) {
      const ops::FeedForwardWeights weights{first ? scaled_layer(32, 64) : plain_layer(32, 64),
                                            second ? scaled_layer(64, 32) : plain_layer(64, 32)};
      const at::Tensor hidden = at::gelu(ops::linear(x, weights.in), "tanh");
      const auto input = ops::make_layer_input(x, ops::forms_read_by({&weights.in}));
      EXPECT_TRUE(
          test::same_bytes(ops::feed_forward(weights, input), ops::linear(hidden, weights.out)));
    }
  }
}

TEST(LayerInputTest, OutputProjectionReadsTheGatedHeads) {
  ops::AttentionWeights weights;
  weights.heads = 4;
  const at::Tensor heads_out = at::randn({2, 5, 32});
  const at::Tensor logits = at::randn({2, 5, 4});
  for (const bool scaled : {false, true}) {
    weights.to_out = scaled ? scaled_layer(32, 24) : plain_layer(32, 24);
    const at::Tensor gated = ops::gate_heads(heads_out, logits, 4).plain;
    EXPECT_TRUE(test::same_bytes(ops::project_out(weights, heads_out, logits),
                                 ops::linear(gated, weights.to_out)));
    EXPECT_TRUE(test::same_bytes(ops::project_out(weights, heads_out, {}),
                                 ops::linear(heads_out, weights.to_out)));
  }
}

}  // namespace
}  // namespace flotilla
