#include "ops/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ops/attention.h"
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

// exp() and its like: whether a value falls to vector or to scalar code.
TEST(LinearTest, RowsByThemselvesMakeFunctionsIndependentOfTheirNumber) {
  const at::Tensor x = at::randn({130, 7});
  const ops::FixedRowBlocks fixed;
  const at::Tensor whole = ops::by_rows(x, at::sigmoid);
  EXPECT_TRUE(test::all_close(whole, at::sigmoid(x.to(at::kDouble)), 1e-6));
  for (const int64_t share : {1, 2, 13, 65}) {
    for (int64_t begin = 0; begin + share <= 130; begin += share) {
      EXPECT_TRUE(test::same_bytes(ops::by_rows(x.narrow(0, begin, share), at::sigmoid),
                                   whole.narrow(0, begin, share)))
          << share << " " << begin;
    }
  }
}

// Attention whose queries are a part of the tokens, with a row of the mask for each.
TEST(LinearTest, FixedBlocksMakeQueriesIndependentOfTheirNumber) {
  const at::Tensor q = at::randn({2, 3, 130, 16});
  const at::Tensor k = at::randn({2, 3, 21, 16});
  const at::Tensor v = at::randn({2, 3, 21, 16});
  const at::Tensor mask = at::randn({2, 1, 130, 21});
  const at::Tensor expected = ops::dot_product(q, k, v, mask);
  const ops::FixedRowBlocks fixed;
  const at::Tensor whole = ops::dot_product(q, k, v, mask);
  EXPECT_TRUE(test::all_close(whole, expected, 1e-5));
  for (const int64_t share : {1, 2, 13, 65}) {
    for (int64_t begin = 0; begin + share <= 130; begin += share) {
      const at::Tensor part =
          ops::dot_product(q.narrow(2, begin, share), k, v, mask.narrow(2, begin, share));
      EXPECT_TRUE(test::same_bytes(part, whole.narrow(1, begin, share))) << share << " " << begin;
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
