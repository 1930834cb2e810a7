// Behaviour of encoder and decoder that no golden shows: refused sizes, non-finite numbers,
// callbacks, precision, the layout of large maps.
#include "vae/decoder.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "support/compare.h"
#include "support/golden.h"
#include "vae/encoder.h"

namespace flotilla::vae {
namespace {

using diffusion::AxisTiling;

template <typename Body>
ErrorKind kind_of_error(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::internal;
}

class VideoDecoderTest : public testing::Test {
 protected:
  static VideoDecoder open(const char* file, at::ScalarType dtype = at::kFloat) {
    return VideoDecoder::from_checkpoint(test::open_tiny(file), dtype, at::kCPU);
  }
  const VideoDecoder decoder_ = open("vae-small-20.safetensors");

  at::Tensor random_latent(int64_t frames, int64_t height, int64_t width) const {
    at::manual_seed(3);
    return at::randn({1, decoder_.config().latent_channels, frames, height, width});
  }
  TilePlan plan(const diffusion::VideoTiling& tiling, const at::Tensor& latent) const {
    return plan_tiles(tiling,
                      {.frames = latent.size(2), .height = latent.size(3), .width = latent.size(4)},
                      decoder_.scale());
  }
  at::Tensor frames(const at::Tensor& latent, const diffusion::VideoTiling& tiling) const {
    std::vector<at::Tensor> batches;
    decoder_.decode_frames(latent, plan(tiling, latent),
                           [&](const at::Tensor& batch) { batches.push_back(batch.clone()); });
    return at::cat(batches, 0);
  }
};

TEST_F(VideoDecoderTest, TiledFramesKeepRangeAndMeanOfTheWhole) {
  const at::Tensor latent = random_latent(4, 5, 5);
  const AxisTiling space = AxisTiling::of_size(96, 64);
  const at::Tensor tiled = frames(latent, {AxisTiling::of_size(24, 8), space, space});
  const at::Tensor whole = frames(latent, {});
  EXPECT_GE(tiled.min().item<double>(), 0.0);
  EXPECT_LE(tiled.max().item<double>(), 1.0);
  EXPECT_NEAR(tiled.mean().item<double>(), whole.mean().item<double>(), 0.02);
  EXPECT_NEAR(tiled.std().item<double>(), whole.std().item<double>(), 0.03);
}

TEST_F(VideoDecoderTest, TellsTheTileThatIsNotFinite) {
  at::Tensor latent = random_latent(2, 2, 4);
  latent[0][0][0][0][3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(kind_of_error([&] { frames(latent, {}); }), ErrorKind::non_finite);
  try {
    frames(latent, {{}, {}, AxisTiling::of_count(2, 0)});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("tile 2 of 2"), std::string::npos) << error.message();
  }
}

TEST_F(VideoDecoderTest, ReportsEachTileAndStopsWhenTold) {
  const at::Tensor latent = random_latent(2, 2, 4);
  const TilePlan two = plan({{}, {}, AxisTiling::of_count(2, 0)}, latent);
  std::vector<int64_t> done;
  const auto ignore = [](const at::Tensor&) {};
  decoder_.decode_frames(latent, two, ignore, [&](int64_t tile, int64_t total) {
    EXPECT_EQ(total, 2);
    done.push_back(tile);
  });
  EXPECT_EQ(done, (std::vector<int64_t>{1, 2}));
  const auto stop = [](int64_t, int64_t) { throw std::runtime_error("stopped"); };
  EXPECT_THROW(decoder_.decode_frames(latent, two, ignore, stop), std::runtime_error);
}

TEST_F(VideoDecoderTest, RefusesLatentsOfAnotherShape) {
  EXPECT_EQ(kind_of_error([&] { decoder_.decode(at::zeros({1, 7, 2, 2, 2})); }), ErrorKind::config);
  const int64_t channels = decoder_.config().latent_channels;
  EXPECT_EQ(kind_of_error([&] {
              decoder_.decode(at::zeros({1, channels, 0, 2, 2}));
            }),
            ErrorKind::config);
  // One row cannot be reflected.
  EXPECT_EQ(kind_of_error([&] {
              decoder_.decode(at::zeros({1, channels, 2, 1, 2}));
            }),
            ErrorKind::config);
}

TEST_F(VideoDecoderTest, DecodesBatchesAndLeavesTheLatentAlone) {
  const at::Tensor one = random_latent(2, 2, 2);
  const at::Tensor two = at::cat({one, one.neg()}, 0);
  const at::Tensor before = two.clone();
  const at::Tensor pixels = decoder_.decode(two);
  EXPECT_TRUE(test::same_bytes(two, before));
  EXPECT_TRUE(test::all_close(pixels.narrow(0, 0, 1), decoder_.decode(one), 2e-5));
}

// The large-map layout and its convolutions against the plain one, on the same weights.
TEST_F(VideoDecoderTest, LargeMapsGiveTheNumbersOfSmallOnes) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({1, 32, 4, 24, 40});
  const Conv conv{at::randn({48, 32, 3, 3, 3}) / 30, at::randn({48})};
  for (const SpatialPadding padding : {SpatialPadding::zeros, SpatialPadding::reflect}) {
    for (const bool causal : {false, true}) {
      const Borders borders{.space = padding, .causal = causal};
      const at::Tensor buffer = padded_norm_silu(x, borders);
      EXPECT_FALSE(buffer.is_contiguous());
      const at::Tensor rms = (x.square().mean({1}, true) + 1e-8).sqrt();
      at::Tensor plain = at::silu(x / rms);
      const std::vector<at::Tensor> parts =
          causal ? std::vector<at::Tensor>{plain.slice(2, 0, 1), plain.slice(2, 0, 1), plain}
                 : std::vector<at::Tensor>{plain.slice(2, 0, 1), plain, plain.slice(2, 3)};
      plain = at::cat(parts, 2);
      const bool reflect = padding == SpatialPadding::reflect;
      if (reflect) plain = at::reflection_pad3d(plain, {1, 1, 1, 1, 0, 0});
      EXPECT_TRUE(test::all_close(buffer, plain, 1e-5));
      const int64_t zeros = reflect ? 0 : 1;
      EXPECT_TRUE(test::all_close(convolve(buffer, conv, borders),
                                  at::conv3d(plain, conv.weight, conv.bias, 1, {0, zeros, zeros}),
                                  1e-4));
      for (const int64_t run : {1, 3}) {
        EXPECT_TRUE(test::all_close(convolve_in_runs(buffer, conv, borders, run),
                                    convolve(buffer, conv, borders), 1e-5));
      }
    }
  }
}

TEST_F(VideoDecoderTest, ComputesInTheTypeOfTheWeights) {
  const VideoDecoder half = open("ltx23-dev.safetensors", at::kBFloat16);
  const VideoDecoder full = open("ltx23-dev.safetensors");
  at::manual_seed(9);
  const at::Tensor latent = at::randn({1, full.config().latent_channels, 2, 2, 2});
  const at::Tensor pixels = half.decode(latent);
  EXPECT_EQ(pixels.scalar_type(), at::kBFloat16);
  const double error = (pixels.to(at::kFloat) - full.decode(latent)).abs().mean().item<double>();
  EXPECT_LT(error, 0.05);
}

TEST(FrameTypesTest, RoundsToBytes) {
  const at::Tensor frames = at::tensor({0.0F, 1.0F, 0.5F / 255, 1.5F / 255, 0.4F});
  EXPECT_TRUE(at::equal(to_uint8(frames), at::tensor({0, 255, 0, 2, 102}).to(at::kByte)));
}

TEST(VideoEncoderTest, RefusesSizesThatWouldBeCropped) {
  const VideoEncoder encoder = VideoEncoder::from_checkpoint(
      test::open_tiny("vae-small-23.safetensors"), at::kFloat, at::kCPU);
  const auto refusal = [&](int64_t frames, int64_t height, int64_t width) -> std::string {
    try {
      encoder.encode(at::zeros({1, 3, frames, height, width}));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::config);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(9, 32, 64), "");
  EXPECT_NE(refusal(12, 32, 64).find("use 9 or 17"), std::string::npos);
  EXPECT_NE(refusal(9, 40, 64).find("40 x 64"), std::string::npos);
  EXPECT_NE(refusal(0, 32, 32), "");
}

}  // namespace
}  // namespace flotilla::vae
