// The conditioning image of the end-to-end goldens (made with the LTX-2 Python reference, commit
// 400fd31).
#include <gtest/gtest.h>

#include "io/image_resize.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla::io {
namespace {

TEST(ImageGoldenTest, StageOnePixelsEqualTheReference) {
  const test::Golden golden("e2e_distilled_i2v");
  const at::Tensor expected = golden["image.stage1.pixels"];  // [1, 3, 1, H, W]
  const auto path = test::tiny_dir() / golden.params().at("image").get<std::string>();
  const at::Tensor pixels =
      load_conditioning_image(path, expected.size(3), expected.size(4), /*crf=*/0, "");
  // Interpolation in fp32 of values up to 255, scaled to [-1, 1].
  EXPECT_TRUE(test::all_close(pixels, expected, 1e-6));
}

}  // namespace
}  // namespace flotilla::io
