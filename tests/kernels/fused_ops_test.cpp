// The fused element-wise kernels against their ATen twins in float64, over odd sizes, both dtypes,
// all ways to find a row.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/norm.h"
#include "support/compare.h"
#include "support/device.h"

namespace flotilla {
namespace {

struct Size {
  int64_t batch, tokens, dim, rows;
};
// Widths below, at and above a block's reach; an odd one that takes the narrow path.
constexpr Size kSizes[] = {
    {1, 1, 8, 1}, {2, 7, 128, 2}, {1, 33, 4096, 3}, {2, 5, 131, 4}, {1, 3, 16384, 1}};

TEST(RmsNormModulateTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(7);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& size : kSizes) {
      const auto options = at::TensorOptions(at::kCUDA).dtype(dtype);
      const at::Tensor x = at::randn({size.batch, size.tokens, size.dim}, options);
      ops::TokenModulation modulation{
          at::randn({size.rows, size.dim}, options), at::randn({size.rows, size.dim}, options), {}};
      if (size.rows != 1 && size.rows != size.batch) {
        modulation.row_of_token =
            at::randint(size.rows, {size.batch, size.tokens}, options.dtype(at::kLong));
      }
      const at::Tensor actual = ops::rms_norm_modulate(x, 1e-6, modulation).plain;
      modulation.scale = modulation.scale.to(at::kDouble);
      modulation.shift = modulation.shift.to(at::kDouble);
      const at::Tensor expected = ops::rms_norm_modulate_aten(x.to(at::kDouble), 1e-6, modulation);
      // One rounding to the dtype: half an ulp of values up to about 16, relative.
      const double rtol = dtype == at::kFloat ? 2e-6 : 8e-3;
      EXPECT_TRUE(test::all_close(actual, expected, rtol, rtol))
          << fmt::format("{} B {} T {} D {} rows {}", c10::toString(dtype), size.batch, size.tokens,
                         size.dim, size.rows);
    }
  }
}

ops::TokenModulation in_float64(ops::TokenModulation modulation) {
  modulation.scale = modulation.scale.to(at::kDouble);
  modulation.shift = modulation.shift.to(at::kDouble);
  return modulation;
}

TEST(ResidualNormModulateTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(8);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& size : kSizes) {
      for (const size_t count : {0, 1, 2}) {
        const auto options = at::TensorOptions(at::kCUDA).dtype(dtype);
        const auto tokens = [&] { return at::randn({size.batch, size.tokens, size.dim}, options); };
        const at::Tensor x = tokens();
        const at::Tensor update = tokens();
        at::Tensor index;
        if (size.rows != 1 && size.rows != size.batch)
          index = at::randint(size.rows, {size.batch, size.tokens}, options.dtype(at::kLong));
        // Rows of a table of five a timestep, as in a block.
        const at::Tensor table = at::randn({size.rows, 5, size.dim}, options);
        const std::vector<ops::TokenModulation> modulations = {
            {table.select(1, 0), table.select(1, 1), index},
            {table.select(1, 2), table.select(1, 3), index}};
        const ops::TokenGate gate{table.select(1, 4), index};
        const auto actual =
            ops::residual_norm_modulate(x, update, gate, 1e-6, std::span(modulations).first(count));
        SCOPED_TRACE(fmt::format("{} B {} T {} D {} rows {} modulations {}", c10::toString(dtype),
                                 size.batch, size.tokens, size.dim, size.rows, count));
        const double rtol = dtype == at::kFloat ? 2e-6 : 8e-3;
        const auto sum = ops::residual_norm_modulate_aten(x.to(at::kDouble), update.to(at::kDouble),
                                                          {gate.rows.to(at::kDouble), index}, 1e-6);
        EXPECT_TRUE(test::all_close(actual.x, sum.x, rtol, rtol));
        ASSERT_EQ(actual.modulated.size(), count);
        for (size_t m = 0; m < count; ++m) {
          // Of the sum as it was rounded: that is what the next layer adds to.
          const at::Tensor expected = ops::rms_norm_modulate_aten(actual.x.to(at::kDouble), 1e-6,
                                                                  in_float64(modulations[m]));
          EXPECT_TRUE(test::all_close(actual.modulated[m].plain, expected, 2 * rtol, rtol));
        }
      }
    }
  }
}

TEST(ResidualNormModulateTest, GateOfASampleNeedsNoIndex) {
  FLOTILLA_REQUIRE_GPU();
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kFloat);
  const at::Tensor x = at::randn({2, 3, 64}, options);
  const at::Tensor update = at::randn({2, 3, 64}, options);
  const at::Tensor gate = at::randn({2, 64}, options);
  const ops::TokenModulation modulation{at::randn({4, 64}, options), at::randn({4, 64}, options),
                                        at::randint(4, {2, 3}, options.dtype(at::kLong))};
  const auto actual = ops::residual_norm_modulate(x, update, {gate, {}}, 1e-6, {&modulation, 1});
  const auto expected =
      ops::residual_norm_modulate_aten(x, update, {gate, {}}, 1e-6, {&modulation, 1});
  EXPECT_TRUE(test::all_close(actual.x, expected.x, 2e-6, 2e-6));
  EXPECT_TRUE(test::all_close(actual.modulated[0].plain, expected.modulated[0].plain, 1e-5, 1e-5));
}

TEST(GateHeadsTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t head_dim : {1, 5, 64, 128}) {
      const auto options = at::TensorOptions(at::kCUDA).dtype(dtype);
      const at::Tensor heads_out = at::randn({2, 33, 4 * head_dim}, options);
      const at::Tensor logits = at::randn({2, 33, 4}, options) * 4;
      const at::Tensor actual = ops::gate_heads(heads_out, logits, 4).plain;
      const at::Tensor gates = 2 * at::sigmoid(logits.to(at::kDouble));
      const at::Tensor expected =
          (heads_out.to(at::kDouble).unflatten(-1, {4, -1}) * gates.unsqueeze(-1)).flatten(-2);
      const double rtol = dtype == at::kFloat ? 4e-6 : 8e-3;
      EXPECT_TRUE(test::all_close(actual, expected, rtol, rtol)) << head_dim;
    }
  }
}

}  // namespace
}  // namespace flotilla
