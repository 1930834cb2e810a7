// The fused kernel against its ATen twin in float64, over odd sizes, both dtypes, both ways to find
// a row.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

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
      const at::Tensor actual = ops::rms_norm_modulate(x, 1e-6, modulation);
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

}  // namespace
}  // namespace flotilla
