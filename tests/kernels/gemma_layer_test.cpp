// The fused chains of a Gemma layer against their ATen twins in float64.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/gemma_layer.h"
#include "support/compare.h"
#include "support/device.h"

namespace flotilla {
namespace {

constexpr double kEps = 1e-6;

// One rounding of the result, and one of the sum that the second norm reads.
double tolerance(at::ScalarType dtype) { return dtype == at::kFloat ? 3e-6 : 1.6e-2; }

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble); }

at::Tensor draw(std::vector<int64_t> sizes, at::ScalarType dtype) {
  return at::randn(sizes, at::TensorOptions(at::kCUDA).dtype(dtype));
}

// Below, at and above a block's vectors; an odd width that takes the narrow path; one that no block
// holds, which the twin computes.
constexpr int64_t kWidths[] = {8, 131, 2048, 3840, 8192, 16392};

TEST(GemmaAddNormTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(11);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : kWidths) {
      const auto x = draw({2, 5, width}, dtype), update = draw({2, 5, width}, dtype);
      const auto weight = draw({width}, dtype) * 0.3, next = draw({width}, dtype) * 0.3;
      const auto actual = ops::gemma_add_norm(x, update, weight, kEps, next);
      const auto expected =
          ops::gemma_add_norm_aten(wide(x), wide(update), wide(weight), kEps, wide(next));
      const double rtol = tolerance(dtype);
      EXPECT_TRUE(test::all_close(actual.sum, expected.sum, rtol, rtol)) << width;
      EXPECT_TRUE(test::all_close(actual.normed, expected.normed, rtol, rtol)) << width;
      EXPECT_FALSE(ops::gemma_add_norm(x, update, weight, kEps, {}).normed.defined());
      EXPECT_TRUE(test::all_close(ops::gemma_rms_norm(x, weight, kEps),
                                  ops::gemma_rms_norm_aten(wide(x), wide(weight), kEps), rtol,
                                  rtol))
          << width;
    }
  }
}

TEST(GemmaNormRotateTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(12);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t head_dim : {16, 64, 256, 512, 1024}) {
      const auto x = draw({2, 7, 3 * head_dim}, dtype);
      const auto weight = draw({head_dim}, dtype) * 0.3;
      const auto cos = draw({7, head_dim}, dtype), sin = draw({7, head_dim}, dtype);
      const auto actual = ops::gemma_norm_rotate(x, 3, weight, kEps, cos, sin);
      const auto expected =
          ops::gemma_norm_rotate_aten(wide(x), 3, wide(weight), kEps, wide(cos), wide(sin));
      const double rtol = tolerance(dtype);
      EXPECT_TRUE(test::all_close(actual, expected, rtol, rtol))
          << c10::toString(dtype) << " head size " << head_dim;
    }
  }
}

TEST(GeluProductTest, EqualsTheTwin) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(13);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {1, 131, 15360}) {
      const auto gate = draw({3, width}, dtype) * 3, up = draw({3, width}, dtype);
      const double rtol = tolerance(dtype);
      EXPECT_TRUE(test::all_close(ops::gelu_product(gate, up),
                                  ops::gelu_product_aten(wide(gate), wide(up)), rtol, rtol))
          << c10::toString(dtype) << " width " << width;
    }
  }
}

}  // namespace
}  // namespace flotilla
