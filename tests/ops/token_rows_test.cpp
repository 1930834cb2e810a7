#include "ops/token_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/compare.h"

namespace flotilla {
namespace {

TEST(TokenRowsTest, TableGivesBackTheTimesteps) {
  const at::Tensor timesteps = at::tensor({0.0F, 0.5F, 0.5F, 0.25F, 0.0F, 0.5F}).view({2, 3});
  const ops::TimestepTable table = ops::make_timestep_table(timesteps.unsqueeze(-1));
  EXPECT_EQ(table.values.numel(), 3);
  EXPECT_TRUE(test::same_bytes(ops::expand_rows(table.values.unsqueeze(1), table.index).squeeze(-1),
                               timesteps));
}

TEST(TokenRowsTest, UniformSamplesNeedNoIndex) {
  const at::Tensor timesteps = at::tensor({0.5F, 0.25F}).view({2, 1}).expand({2, 4});
  const ops::TimestepTable table = ops::make_timestep_table(timesteps);
  EXPECT_FALSE(table.index.defined());
  EXPECT_TRUE(test::same_bytes(table.values, at::tensor({0.5F, 0.25F})));
  EXPECT_EQ(ops::expand_rows(at::randn({2, 8}), table.index).sizes(), at::IntArrayRef({2, 1, 8}));
}

TEST(TokenRowsTest, TableDoesNotDependOnTokenOrder) {
  const at::Tensor timesteps = at::tensor({0.7F, 0.0F, 0.7F, 0.2F}).view({1, 4});
  const auto forward = ops::make_timestep_table(timesteps);
  const auto backward = ops::make_timestep_table(timesteps.flip(1));
  EXPECT_TRUE(test::same_bytes(forward.values, backward.values));
  EXPECT_TRUE(test::same_bytes(forward.index, backward.index.flip(1)));
}

}  // namespace
}  // namespace flotilla
