// Plans of tiled decodes and the blending of their tiles, with stand-ins for the decoder.
#include "vae/tile_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "support/compare.h"
#include "vae/frame_blender.h"

namespace flotilla::vae {
namespace {

using diffusion::AxisTiling;
using diffusion::VideoTiling;

constexpr diffusion::ScaleFactors kScale{8, 32, 32};

TilePlan plan_of(const VideoTiling& tiling, int64_t frames, int64_t height, int64_t width) {
  return plan_tiles(tiling, {.frames = frames, .height = height, .width = width}, kScale);
}

// What the blender makes of tiles cut out of `clip` [F, H, W, 3].
std::vector<at::Tensor> blend_crops(const TilePlan& plan, const at::Tensor& clip) {
  std::vector<at::Tensor> batches;
  FrameBlender blender(plan, [&](const at::Tensor& frames) { batches.push_back(frames.clone()); });
  for (int64_t i = 0; i < plan.num_tiles(); ++i) {
    EXPECT_FALSE(blender.finished());
    const Tile tile = plan.tile(i);
    blender.add(clip.narrow(0, tile.frames.output.begin, tile.frames.output.size())
                    .narrow(1, tile.rows.output.begin, tile.rows.output.size())
                    .narrow(2, tile.columns.output.begin, tile.columns.output.size()));
  }
  EXPECT_TRUE(blender.finished());
  return batches;
}

at::Tensor random_clip(const TilePlan& plan) {
  at::manual_seed(7);
  return at::rand({plan.num_frames(), plan.height(), plan.width(), 3});
}

TEST(TilePlanTest, BlendedCropsGiveTheClipBack) {
  const AxisTiling space = AxisTiling::of_size(64, 32);
  const VideoTiling tilings[] = {
      {},
      {AxisTiling::of_size(24, 8), {}, {}},
      {AxisTiling::of_size(16, 8), {}, {}},  // the first batch has no frames
      {{}, space, space},
      {AxisTiling::of_size(24, 8), space, space},
      {AxisTiling::of_count(3, 1), AxisTiling::of_count(2, 2), AxisTiling::of_count(2, 0)},
      // More than two tiles meet, so the ramps do not sum to one by themselves.
      {AxisTiling::of_size(40, 32), AxisTiling::of_size(128, 96), AxisTiling::of_size(96, 64)},
  };
  for (const VideoTiling& tiling : tilings) {
    const TilePlan plan = plan_of(tiling, 8, 5, 4);
    SCOPED_TRACE(plan.describe());
    const at::Tensor clip = random_clip(plan);
    EXPECT_TRUE(test::all_close(at::cat(blend_crops(plan, clip), 0), clip, 1e-6));
  }
}

TEST(TilePlanTest, BatchesHaveThePlannedLengths) {
  const TilePlan plan = plan_of({AxisTiling::of_size(16, 8), {}, {}}, 5, 1, 1);
  EXPECT_EQ(plan.batch_frames().front(), 0);
  std::vector<int64_t> sent;
  for (const at::Tensor& batch : blend_crops(plan, random_clip(plan)))
    sent.push_back(batch.size(0));
  std::vector<int64_t> planned;
  for (const int64_t count : plan.batch_frames()) {
    if (count > 0) planned.push_back(count);
  }
  EXPECT_EQ(sent, planned);
  int64_t total = 0;
  for (const int64_t count : planned) total += count;
  EXPECT_EQ(total, plan.num_frames());
}

TEST(TilePlanTest, BlendingInHalfPrecisionGivesFloatFrames) {
  const TilePlan plan = plan_of({{}, AxisTiling::of_count(2, 1), {}}, 2, 3, 1);
  const at::Tensor clip = random_clip(plan).to(at::kBFloat16);
  const auto batches = blend_crops(plan, clip);
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(batches[0].scalar_type(), at::kFloat);
  EXPECT_TRUE(test::all_close(batches[0], clip, 1e-6));
}

TEST(TilePlanTest, TilesOfAnotherSizeAreAnInternalError) {
  const TilePlan plan = plan_of({{}, AxisTiling::of_count(2, 1), {}}, 2, 3, 1);
  FrameBlender blender(plan, [](const at::Tensor&) {});
  EXPECT_THROW(blender.add(at::zeros({1, 32, 32, 3})), Error);
}

TEST(TilePlanTest, DescribesWhatItDoes) {
  EXPECT_EQ(plan_of({}, 4, 8, 12).describe(), "not tiled");
  const AxisTiling larger_than_the_clip = AxisTiling::of_size(1024, 64);
  EXPECT_EQ(plan_of({{}, larger_than_the_clip, larger_than_the_clip}, 4, 8, 12).describe(),
            "not tiled");
  const auto tiles_of = [](int64_t size) {
    return plan_of({{}, AxisTiling::of_size(size, 32), AxisTiling::of_size(size, 32)}, 4, 8, 12);
  };
  EXPECT_EQ(tiles_of(128).describe(),
            "12 tiles: 1 x 3 x 4 (frames x height x width), at most 25 x 128 x 128");
  EXPECT_GT(tiles_of(64).num_tiles(), tiles_of(128).num_tiles());
}

TEST(TilePlanTest, RefusesTilesThatDoNotFit) {
  EXPECT_THROW(plan_of({AxisTiling::of_count(4, 2), {}, {}}, 5, 8, 8), Error);
  EXPECT_THROW(plan_of({{}, AxisTiling::of_size(100, 32), {}}, 5, 8, 8), Error);
}

DecoderConfig small_decoder() {
  DecoderConfig config;
  config.latent_channels = 4;
  config.base_channels = 8;
  for (int i = 0; i < 3; ++i) {
    config.blocks.push_back({.kind = BlockKind::unfold,
                             .name = "compress_all",
                             .multiplier = 2,
                             .skip = false,
                             .stride = {2, 2, 2}});
    config.blocks.push_back({.kind = BlockKind::residual, .name = "res_x"});
  }
  return config;
}

TEST(AutomaticTilingTest, DecodesWholeWhenItFits) {
  const DecoderConfig config = small_decoder();
  const diffusion::VideoLatentSize latent{1, 4, 31, 34, 60};
  const int64_t whole =
      forecast_decode_bytes(config, plan_tiles({}, latent, config.scale()), sizeof(float));
  EXPECT_EQ(automatic_tiling(config, latent, sizeof(float), whole), VideoTiling{});
  const VideoTiling tiling = automatic_tiling(config, latent, sizeof(float), whole - 1);
  EXPECT_EQ(tiling, diffusion::default_tiling(34 * 32, 60 * 32, 32));
  const TilePlan plan = plan_tiles(tiling, latent, config.scale());
  EXPECT_TRUE(plan.tiled());
  EXPECT_LT(forecast_decode_bytes(config, plan, sizeof(float)), whole / 4);
}

TEST(AutomaticTilingTest, ForecastGrowsWithEverySideAndHalvesWithTheType) {
  const DecoderConfig config = small_decoder();
  const diffusion::VideoLatentSize latent{1, 4, 4, 8, 12};
  const int64_t base = forecast_decode_bytes(config, latent, 4);
  EXPECT_EQ(forecast_decode_bytes(config, latent, 2), base / 2);
  EXPECT_GT(forecast_decode_bytes(config, {1, 4, 5, 8, 12}, 4), base);
  EXPECT_GT(forecast_decode_bytes(config, {1, 4, 4, 9, 12}, 4), base);
  EXPECT_GT(forecast_decode_bytes(config, {1, 4, 4, 8, 13}, 4), base);
}

}  // namespace
}  // namespace flotilla::vae
