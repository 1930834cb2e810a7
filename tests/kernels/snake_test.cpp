// The fused activation of the vocoder against its ATen twin, at lengths around its tiles.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "audio/snake.h"
#include "support/compare.h"
#include "support/device.h"

namespace flotilla {
namespace {

audio::AntiAliasedSnake make_snake(int64_t channels) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kFloat);
  audio::AntiAliasedSnake snake;
  snake.log_alpha = at::randn({channels}, options) * 0.5;
  snake.log_beta = at::randn({channels}, options) * 0.5;
  snake.up_filter = at::randn({1, 1, 12}, options) * 0.3;
  snake.down_filter = at::randn({1, 1, 12}, options) * 0.3;
  snake.prepare();
  return snake;
}

TEST(SnakeKernelTest, EqualsTheTwinAtEveryLength) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(21);
  const auto snake = make_snake(5);
  for (const int64_t length : {1, 2, 6, 7, 1023, 1024, 1025, 1027, 1030, 4099}) {
    const at::Tensor x = at::randn({2, 5, length}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
    // Another order of float32 sums of 7 and 14 terms.
    EXPECT_TRUE(test::all_close(audio::apply_snake(x, snake), audio::apply_snake_aten(x, snake),
                                2e-5, 1e-5))
        << length;
  }
}

TEST(SnakeKernelTest, TakesMoreRowsThanAGridHas) {
  FLOTILLA_REQUIRE_GPU();
  at::manual_seed(22);
  const auto snake = make_snake(3);
  const at::Tensor x = at::randn({22'000, 3, 9}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  EXPECT_TRUE(
      test::all_close(audio::apply_snake(x, snake), audio::apply_snake_aten(x, snake), 2e-5, 1e-5));
}

}  // namespace
}  // namespace flotilla
