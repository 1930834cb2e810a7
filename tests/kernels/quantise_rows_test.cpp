// The kernels that write e4m3 rows against the ATen twin, to the byte, over odd sizes and both
// dtypes; fused producers against the same steps apart; rows of zeros and rows that are not finite.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
#include "ops/fp8_linear.h"
#include "ops/layer_input.h"
#include "ops/norm.h"
#include "support/compare.h"
#include "support/device.h"

namespace flotilla {
namespace {

constexpr ops::InputForms kQuantised{.plain = false, .quantised = true};
constexpr ops::InputForms kBoth{.plain = true, .quantised = true};

::testing::AssertionResult same_rows(const ops::QuantisedRows& actual,
                                     const ops::QuantisedRows& expected) {
  if (actual.dtype != expected.dtype) return ::testing::AssertionFailure() << "other dtype";
  if (const auto same = test::same_bytes(actual.scales, expected.scales); !same)
    return ::testing::AssertionFailure() << "scales: " << same.message();
  return test::same_bytes(actual.values.view(at::kByte), expected.values.view(at::kByte));
}

struct Size {
  int64_t rows, dim;
};
// One, two and eight vectors a thread, a row that is read again, odd ones that take the narrow path
// (below and above a block), no row at all.
constexpr Size kSizes[] = {{1, 8},     {33, 2048}, {7, 4096}, {5, 16384},
                           {2, 40000}, {3, 131},   {2, 4099}, {0, 64}};

at::Tensor random_rows(const Size& size, at::ScalarType dtype) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(dtype);
  // Rows of different sizes; the last one is zero.
  at::Tensor rows =
      at::randn({size.rows, size.dim}, options) * at::randn({size.rows, 1}, options).mul(3).exp();
  if (size.rows > 1) rows[size.rows - 1].zero_();
  return rows;
}

TEST(QuantiseRowsKernelTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(11);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Size& size : kSizes) {
      const at::Tensor rows = random_rows(size, dtype);
      EXPECT_TRUE(same_rows(ops::quantise_rows(rows), ops::quantise_rows_aten(rows)))
          << fmt::format("{} {}x{}", c10::toString(dtype), size.rows, size.dim);
      // The CPU's bytes as well: files are quantised there.
      const auto host = ops::quantise_rows_aten(rows.cpu());
      EXPECT_TRUE(same_rows(ops::quantise_rows(rows),
                            {host.values.cuda(), host.scales.cuda(), host.dtype}));
    }
  }
}

TEST(QuantiseRowsKernelTest, TakesRowsThatAreNotAligned) {
  FLOTILLA_REQUIRE_GPU();
  const at::Tensor buffer = at::randn({4 * 64 + 1}, at::TensorOptions(at::kCUDA));
  const at::Tensor rows = buffer.narrow(0, 1, 4 * 64).view({4, 64});
  EXPECT_TRUE(same_rows(ops::quantise_rows(rows), ops::quantise_rows_aten(rows)));
}

TEST(QuantiseRowsKernelTest, RowThatIsNotFiniteStaysSo) {
  FLOTILLA_REQUIRE_GPU();
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const auto weight = ops::quantise_rows(at::randn({32, 4096}, options));
  const ops::LinearWeights layer{weight.values, {}, weight.scales.squeeze(1)};
  for (const float wrong : {NAN, INFINITY, -INFINITY}) {
    at::Tensor rows = at::randn({3, 4096}, options);
    rows[1][4001] = wrong;
    const at::Tensor finite = at::isfinite(ops::fp8_linear(ops::quantise_rows(rows), layer)).cpu();
    EXPECT_FALSE(finite[1].any().item<bool>()) << wrong;
    EXPECT_TRUE(finite[0].all().item<bool>() && finite[2].all().item<bool>()) << wrong;
  }
}

// Half a step of e4m3 (2^-4 of the number, or 2^-10 of the scale) and the rounding to the dtype
// before it.
::testing::AssertionResult near(const ops::QuantisedRows& actual, const at::Tensor& exact) {
  const at::Tensor expected = exact.view({-1, exact.size(-1)});
  const at::Tensor error =
      (ops::dequantise_rows(actual).to(at::kDouble).view(expected.sizes()) - expected).abs();
  const at::Tensor bound =
      expected.abs() * (1.0 / 16 + 1.0 / 100) + actual.scales.to(at::kDouble) / 900;
  const at::Tensor excess = (error - bound).amax();
  if (excess.item<double>() <= 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "beyond the bound by " << excess.item<double>();
}

TEST(QuantiseRowsKernelTest, GeluComesFirst) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(12);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Size& size : kSizes) {
      if (size.rows == 0) continue;
      const at::Tensor rows =
          at::randn({1, size.rows, size.dim}, at::TensorOptions(at::kCUDA).dtype(dtype)) * 3;
      const ops::LayerInput actual = ops::gelu(rows, kQuantised);
      EXPECT_FALSE(actual.plain.defined());
      EXPECT_EQ(actual.quantised.values.sizes(), rows.sizes());
      EXPECT_TRUE(near(actual.quantised, at::gelu(rows.to(at::kDouble), "tanh")))
          << fmt::format("{} {}x{}", c10::toString(dtype), size.rows, size.dim);
    }
  }
}

TEST(QuantiseRowsKernelTest, GeluOfLargeNumbersIsExact) {
  FLOTILLA_REQUIRE_GPU();
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kFloat);
  const at::Tensor x = at::tensor({-1e30F, -1e4F, -20.0F, 0.0F, 20.0F, 1e4F, 0.0F, 0.0F}, options);
  const at::Tensor out = ops::dequantise_rows(ops::gelu(x.view({1, 8}), kQuantised).quantised);
  EXPECT_TRUE(test::all_close(out.view({8}), at::relu(x), 0.01, 1.0 / 16));
}

TEST(QuantiseRowsKernelTest, GateComesFirst) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(13);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t head_dim : {1, 5, 64, 128, 1024, 4096}) {
      const auto options = at::TensorOptions(at::kCUDA).dtype(dtype);
      const at::Tensor heads_out = at::randn({2, 33, 4 * head_dim}, options);
      const at::Tensor logits = at::randn({2, 33, 4}, options) * 4;
      const at::Tensor apart = ops::gate_heads(heads_out, logits, 4).plain;
      const ops::LayerInput fused = ops::gate_heads(heads_out, logits, 4, kQuantised);
      EXPECT_FALSE(fused.plain.defined());
      EXPECT_TRUE(same_rows(fused.quantised, ops::quantise_rows_aten(apart)))
          << c10::toString(dtype) << " " << head_dim;
    }
  }
}

TEST(QuantiseRowsKernelTest, ModulationsLeaveAsEightBitRowsToo) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(14);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Size& size : kSizes) {
      if (size.rows == 0) continue;
      const auto options = at::TensorOptions(at::kCUDA).dtype(dtype);
      const auto tokens = [&] { return at::randn({2, size.rows, size.dim}, options); };
      const at::Tensor x = tokens();
      const at::Tensor update = tokens();
      const at::Tensor index = at::randint(3, {2, size.rows}, options.dtype(at::kLong));
      const at::Tensor table = at::randn({3, 5, size.dim}, options);
      const auto modulations = [&](ops::InputForms first, ops::InputForms second) {
        return std::vector<ops::TokenModulation>{
            {table.select(1, 0), table.select(1, 1), index, first},
            {table.select(1, 2), table.select(1, 3), index, second}};
      };
      const ops::TokenGate gate{table.select(1, 4), index};
      SCOPED_TRACE(fmt::format("{} {}x{}", c10::toString(dtype), size.rows, size.dim));
      const auto plain =
          ops::residual_norm_modulate(x, update, gate, 1e-6, modulations({}, {})).modulated;
      const auto mixed =
          ops::residual_norm_modulate(x, update, gate, 1e-6, modulations(kBoth, kQuantised))
              .modulated;
      EXPECT_TRUE(test::same_bytes(mixed[0].plain, plain[0].plain));
      EXPECT_FALSE(mixed[1].plain.defined());
      for (size_t m = 0; m < 2; ++m)
        EXPECT_TRUE(same_rows(mixed[m].quantised, ops::quantise_rows_aten(plain[m].plain))) << m;
      // One alone, without an update and without the norm.
      const ops::TokenModulation one{table.select(1, 0), table.select(1, 1), index, kQuantised};
      ops::TokenModulation same = one;
      same.forms = {};
      EXPECT_TRUE(same_rows(ops::rms_norm_modulate(x, 1e-6, one).quantised,
                            ops::quantise_rows_aten(ops::rms_norm_modulate(x, 1e-6, same).plain)));
      EXPECT_TRUE(same_rows(ops::modulate(x, one).quantised,
                            ops::quantise_rows_aten(ops::modulate(x, same).plain)));
    }
  }
}

}  // namespace
}  // namespace flotilla
