// Resize and crop by hand-computed cases, and the H.264 round trip against the LTX-2 reference.
#include "io/image_resize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "io/image_reader.h"
#include "io_support.h"
#include "loader/checkpoint.h"
#include "support/compare.h"

namespace flotilla::io {
namespace {

using testing::data_dir;
using testing::error_of;
using testing::holds;

at::Tensor expected_crf(const std::string& name) {
  return loader::Checkpoint::open(data_dir() / "seen.safetensors")->read("crf." + name);
}

double psnr(const at::Tensor& left, const at::Tensor& right) {
  const double error =
      (left.to(at::kDouble) - right.to(at::kDouble)).square().mean().item<double>();
  return 10 * std::log10(255.0 * 255.0 / std::max(error, 1e-10));
}

TEST(ImageResizeTest, KeepsAPictureOfTheRightSize) {
  const at::Tensor image = at::arange(0, 2 * 4 * 3, at::kByte).view({2, 4, 3});
  const at::Tensor expected =
      (image.to(at::kFloat) / 127.5 - 1).permute({2, 0, 1}).view({1, 3, 1, 2, 4});
  EXPECT_TRUE(test::all_close(resize_and_center_crop(image, 2, 4), expected, 1e-6));
}

TEST(ImageResizeTest, FillsTheTargetAndCutsTheMiddle) {
  // 2x6 to 2x2: no scaling, the two middle columns of six.
  const at::Tensor image =
      at::arange(0, 6, at::kByte).mul(40).view({1, 6, 1}).expand({2, 6, 3}).contiguous();
  const at::Tensor pixels = resize_and_center_crop(image, 2, 2);
  EXPECT_TRUE(test::all_close((pixels[0][0][0][0] + 1) * 127.5, at::tensor({80.0F, 120.0F}), 1e-4));
}

TEST(ImageResizeTest, ShrinksWithoutAntialias) {
  // 4x4 to 2x2: every target takes the mean of the 2x2 around its centre, nothing more.
  at::Tensor image = at::zeros({4, 4, 3}, at::kByte);
  image[0][0].fill_(200);
  const at::Tensor pixels = resize_and_center_crop(image, 2, 2);
  EXPECT_NEAR((pixels[0][0][0][0][0].item<float>() + 1) * 127.5, 50.0, 1e-4);
  EXPECT_NEAR(pixels[0][0][0][1][1].item<float>(), -1.0, 1e-6);
}

TEST(ImageResizeTest, OnePixelBecomesAFlatPicture) {
  const at::Tensor pixels = resize_and_center_crop(at::full({1, 1, 3}, 255, at::kByte), 32, 64);
  EXPECT_TRUE(test::all_close(pixels, at::ones({1, 3, 1, 32, 64}), 1e-6));
}

TEST(ImageRecompressTest, CrfZeroNeedsNoFfmpegAndChangesNothing) {
  const at::Tensor image = read_image(data_dir() / "photo.png");
  EXPECT_TRUE(test::same_bytes(recompress_image(image, 0, ""), image));
  const at::Tensor line = image.narrow(0, 0, 1);
  EXPECT_TRUE(test::same_bytes(recompress_image(line, 33, ""), line));
}

TEST(ImageRecompressTest, SaysWhatIsWrong) {
  const at::Tensor image = read_image(data_dir() / "photo.png");
  EXPECT_TRUE(holds(error_of([&] { recompress_image(image, 52, ""); }), ErrorKind::config,
                    "crf 52 is not in 0..51"));
  EXPECT_TRUE(
      holds(error_of([&] { recompress_image(image, 33, ""); }), ErrorKind::machine, "crf to 0"));
  EXPECT_TRUE(holds(error_of([&] { recompress_image(image, 33, "/bin/false"); }),
                    ErrorKind::machine, "/bin/false"));
}

// The same steps with another build of x264 and swscale: decisions of the encoder may differ from
// block to block, but the result must be nearer to the reference's than the compression itself is
// to the picture. With ffmpeg 5.1 the bytes are equal; a wrong matrix, range or preset gives less
// than 32 dB.
TEST(ImageRecompressTest, LooksLikeTheReference) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const at::Tensor photo = read_image(data_dir() / "photo.png");
  for (const int crf : {18, 33}) {
    const at::Tensor expected = expected_crf(std::to_string(crf));
    const at::Tensor image = recompress_image(photo, crf, ffmpeg->path);
    EXPECT_GT(psnr(image, expected), 38.0) << "crf " << crf;
    EXPECT_LT(psnr(image, photo), psnr(image, expected)) << "crf " << crf;
  }
}

TEST(ImageRecompressTest, CutsOddSidesAndRepeatsItself) {
  SKIP_WITHOUT_FFMPEG(ffmpeg);
  const at::Tensor odd = read_image(data_dir() / "photo.png").narrow(0, 0, 77).narrow(1, 0, 121);
  const at::Tensor image = recompress_image(odd, 33, ffmpeg->path);
  EXPECT_EQ(image.sizes(), (std::vector<int64_t>{76, 120, 3}));
  EXPECT_GT(psnr(image, expected_crf("odd")), 38.0);
  EXPECT_TRUE(test::same_bytes(recompress_image(odd, 33, ffmpeg->path), image));
}

}  // namespace
}  // namespace flotilla::io
