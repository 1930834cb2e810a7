// Products of e4m3 numbers: the quantisation of rows, the oracle against plain numbers, 8-bit
// storage in plain products; on a GPU the tensor cores against the oracle. The kernels that
// quantise: tests/kernels/quantise_rows_test.cpp.
#include "ops/fp8_linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ops/linear.h"
#include "support/compare.h"
#include "support/device.h"

namespace flotilla {
namespace {

using ops::LinearWeights;
using ops::QuantisedRows;

LinearWeights scaled_layer(int64_t in, int64_t out, at::ScalarType bias_type = at::kFloat) {
  const QuantisedRows rows = ops::quantise_rows(at::randn({out, in}) * at::rand({out, 1}));
  return {rows.values, at::randn({out}).to(bias_type), rows.scales.squeeze(1)};
}

TEST(QuantiseRowsTest, LargestOfEachRowBecomesTheLargestNumber) {
  at::Tensor rows = at::randn({50, 33});
  rows[3] *= 1e6;
  rows[4].zero_();
  const QuantisedRows quantised = ops::quantise_rows(rows.to(at::kBFloat16));
  const at::Tensor largest = quantised.values.to(at::kFloat).abs().amax(1);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(largest[i].item<float>(), i == 4 ? 0.0F : 448.0F) << i;
  // Half a step: 2^-4 of a number, or of the subnormals 2^-10 times the scale.
  const at::Tensor wide = rows.to(at::kBFloat16).to(at::kFloat);
  const at::Tensor error = (ops::dequantise_rows(quantised) - wide).abs();
  EXPECT_TRUE((error <= wide.abs() / 16 + quantised.scales / 1024).all().item<bool>());
}

TEST(QuantiseRowsTest, RowsDoNotDependOnEachOther) {
  const at::Tensor rows = at::randn({9, 20});
  const QuantisedRows whole = ops::quantise_rows(rows);
  for (int64_t i = 0; i < 9; ++i) {
    const QuantisedRows one = ops::quantise_rows(rows.narrow(0, i, 1));
    EXPECT_TRUE(
        test::same_bytes(one.values.view(at::kByte), whole.values.narrow(0, i, 1).view(at::kByte)));
    EXPECT_TRUE(test::same_bytes(one.scales, whole.scales.narrow(0, i, 1)));
  }
}

TEST(QuantiseRowsTest, KeepsTheShapeOfTokens) {
  const at::Tensor tokens = at::randn({2, 5, 48}).to(at::kBFloat16);
  const QuantisedRows quantised = ops::quantise_rows(tokens.transpose(0, 1));
  EXPECT_EQ(quantised.values.sizes(), at::IntArrayRef({5, 2, 48}));
  EXPECT_EQ(quantised.scales.sizes(), at::IntArrayRef({10, 1}));
  EXPECT_EQ(quantised.dtype, at::kBFloat16);
  const at::Tensor wide = tokens.transpose(0, 1).to(at::kFloat);
  EXPECT_TRUE(test::all_close(ops::dequantise_rows(quantised), wide, 0.02, 1.0 / 16));
}

// Nothing that is not finite may come out as a number: one row's product is not finite either, the
// others do not notice.
TEST(QuantiseRowsTest, RowThatIsNotFiniteStaysSo) {
  for (const float wrong : {NAN, INFINITY, -INFINITY}) {
    at::Tensor rows = at::randn({3, 32});
    rows[1][7] = wrong;
    const at::Tensor out = ops::linear(rows, scaled_layer(32, 16));
    EXPECT_FALSE(at::isfinite(out[1]).any().item<bool>()) << wrong;
    EXPECT_TRUE(at::isfinite(out[0]).all().item<bool>()) << wrong;
    EXPECT_TRUE(at::isfinite(out[2]).all().item<bool>()) << wrong;
  }
}

TEST(Fp8LinearTest, EqualsTheProductOfTheRoundedNumbers) {
  const LinearWeights layer = scaled_layer(48, 40);
  const at::Tensor x = at::randn({2, 35, 48});
  const QuantisedRows rows = ops::quantise_rows(x.view({70, 48}));
  const at::Tensor expected =
      at::matmul(ops::dequantise_rows(rows).to(at::kDouble),
                 (layer.weight.to(at::kDouble) * layer.row_scales.unsqueeze(1)).t()) +
      layer.bias;
  EXPECT_TRUE(test::all_close(ops::linear(x, layer), expected.view({2, 35, 40}), 5e-5));
  const ops::FixedRowBlocks fixed;
  EXPECT_TRUE(test::all_close(ops::linear(x, layer), expected.view({2, 35, 40}), 5e-5));
}

// Rounding is a relative error below 2^-4 of each of two factors, so of independent signs: a sum of
// 256 products keeps within a few per cent of its size.
TEST(Fp8LinearTest, IsNearTheProductOfTheUnroundedNumbers) {
  const at::Tensor weight = at::randn({64, 256});
  const QuantisedRows rows = ops::quantise_rows(weight);
  const at::Tensor x = at::randn({100, 256}).to(at::kBFloat16);
  const at::Tensor actual = ops::linear(x, LinearWeights{rows.values, {}, rows.scales.squeeze(1)});
  EXPECT_EQ(actual.scalar_type(), at::kBFloat16);
  const at::Tensor expected = at::matmul(x.to(at::kFloat), weight.t());
  const double error = (actual.to(at::kFloat) - expected).norm().item<double>();
  EXPECT_LT(error, 0.05 * expected.norm().item<double>());
  EXPECT_GT(error, 0.005 * expected.norm().item<double>());  // they are 8-bit numbers
}

TEST(Fp8LinearTest, FixedBlocksMakeRowsIndependentOfTheirNumber) {
  const LinearWeights layer = scaled_layer(64, 96);
  const at::Tensor x = at::randn({130, 64});
  const ops::FixedRowBlocks fixed;
  const at::Tensor whole = ops::linear(x, layer);
  for (const int64_t share : {1, 13, 65}) {
    EXPECT_TRUE(test::same_bytes(ops::linear(x.narrow(0, 65 - share, share), layer),
                                 whole.narrow(0, 65 - share, share)));
  }
}

TEST(LinearTest, EightBitStorageEqualsTheWidenedWeights) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({70, 32}).to(dtype);
    const LinearWeights narrow{
        at::randn({24, 32}).to(at::kFloat8_e4m3fn), at::randn({24}).to(at::kFloat8_e4m3fn), {}};
    const at::Tensor weight = narrow.weight.to(dtype);
    const at::Tensor bias = narrow.bias.to(dtype);
    EXPECT_TRUE(test::same_bytes(ops::linear(x, narrow), ops::linear(x, weight, bias)));
    EXPECT_TRUE(test::same_bytes(ops::linear(x, narrow.weight), ops::linear(x, weight)));
    const ops::FixedRowBlocks fixed;
    EXPECT_TRUE(test::same_bytes(ops::linear(x, narrow), ops::linear(x, weight, bias)));
  }
}

// Tensor cores against the oracle on the same numbers: they differ by the order of the sum, the
// fast accumulation and the last rounding, to bfloat16.
TEST(Fp8LinearGpuTest, TensorCoresEqualTheOracle) {
  FLOTILLA_REQUIRE_GPU();
  for (const auto& [rows, in, out] :
       {std::array<int64_t, 3>{1, 64, 32}, {77, 128, 512}, {1024, 4096, 2048}, {300, 40, 24}}) {
    const LinearWeights host = scaled_layer(in, out, at::kBFloat16);
    const LinearWeights layer{host.weight.cuda(), host.bias.cuda(), host.row_scales.cuda()};
    const at::Tensor x = at::randn({rows, in}).to(at::kBFloat16).cuda();
    const QuantisedRows input = ops::quantise_rows(x);
    const at::Tensor actual = ops::fp8_linear(input, layer).to(at::kFloat);
    const at::Tensor expected = ops::fp8_linear_by_dequantising(input, layer).to(at::kFloat);
    EXPECT_LT((actual - expected).norm().item<double>(), 0.01 * expected.norm().item<double>())
        << rows << " " << in << " " << out;
  }
}

}  // namespace
}  // namespace flotilla
