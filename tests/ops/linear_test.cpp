#include "ops/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/compare.h"

namespace flotilla {
namespace {

TEST(LinearTest, EqualsTheFormulaInBothModes) {
  const at::Tensor x = at::randn({2, 75, 48});
  const at::Tensor weight = at::randn({40, 48});
  const at::Tensor bias = at::randn({40});
  const at::Tensor expected = at::matmul(x.to(at::kDouble), weight.t().to(at::kDouble)) + bias;
  // float32 sums of 48 products of order 1.
  EXPECT_TRUE(test::all_close(ops::linear(x, weight, bias), expected, 5e-5));
  const ops::FixedRowBlocks fixed;
  EXPECT_TRUE(test::all_close(ops::linear(x, weight, bias), expected, 5e-5));
  EXPECT_TRUE(test::all_close(ops::linear(x, weight), expected - bias, 5e-5));
}

// What exact runs stand on: a row's bytes do not depend on the rows around it.
TEST(LinearTest, FixedBlocksMakeRowsIndependentOfTheirNumber) {
  const ops::FixedRowBlocks fixed;
  for (const int64_t width : {8, 64, 256}) {
    const at::Tensor x = at::randn({200, width});
    const at::Tensor weight = at::randn({3 * width, width});
    const at::Tensor bias = at::randn({3 * width});
    const at::Tensor whole = ops::linear(x, weight, bias);
    for (const int64_t share : {1, 3, 25, 67, 100}) {
      for (int64_t begin = 0; begin + share <= 200; begin += share) {
        EXPECT_TRUE(test::same_bytes(ops::linear(x.narrow(0, begin, share), weight, bias),
                                     whole.narrow(0, begin, share)))
            << width << " " << share << " " << begin;
      }
    }
  }
}

TEST(LinearTest, GuardEndsWithItsScope) {
  const at::Tensor x = at::randn({3, 64});
  const at::Tensor weight = at::randn({64, 64});
  const at::Tensor before = ops::linear(x, weight);
  {
    const ops::FixedRowBlocks outer;
    const ops::FixedRowBlocks inner;
  }
  EXPECT_TRUE(test::same_bytes(ops::linear(x, weight), before));
}

}  // namespace
}  // namespace flotilla
