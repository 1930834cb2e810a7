// Plans of decodes over ranks: which grid `auto` takes, who decodes what, which pieces are blended,
// and what is refused.
#include "parallel/decode_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/error.h"
#include "support/golden.h"

namespace flotilla::parallel {
namespace {

using diffusion::AxisTiling;
using diffusion::VideoLatentSize;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr diffusion::ScaleFactors kScale{8, 32, 32};
constexpr std::array<int64_t, 3> kOverlap = {4, 4, 4};

VideoLatentSize latent(int64_t frames, int64_t rows, int64_t columns) {
  VideoLatentSize size;
  size.frames = frames;
  size.height = rows;
  size.width = columns;
  return size;
}

vae::TilePlan grid_of(const VideoLatentSize& size, const TileCounts& counts,
                      const std::array<int64_t, 3>& overlap = kOverlap) {
  return plan_decoder_grid({counts, overlap}, size, kScale);
}

TEST(DecodePlanTest, AutoTakesTheBalancedGridWhereItFits) {
  const VideoLatentSize wide = latent(16, 32, 48);
  EXPECT_EQ(automatic_decoder_counts(wide, kOverlap, 1), (TileCounts{1, 1, 1}));
  EXPECT_EQ(automatic_decoder_counts(wide, kOverlap, 2), (TileCounts{1, 1, 2}));
  EXPECT_EQ(automatic_decoder_counts(wide, kOverlap, 3), (TileCounts{1, 1, 3}));
  EXPECT_EQ(automatic_decoder_counts(wide, kOverlap, 4), (TileCounts{1, 2, 2}));
  EXPECT_EQ(automatic_decoder_counts(wide, kOverlap, 8), (TileCounts{1, 2, 4}));
}

TEST(DecodePlanTest, AutoTakesWhatFitsElse) {
  // 2 x 2 needs 6 rows.
  EXPECT_EQ(automatic_decoder_counts(latent(3, 4, 7), kOverlap, 4), (TileCounts{1, 1, 3}));
  // A fourth column would make no tile smaller.
  EXPECT_EQ(automatic_decoder_counts(latent(3, 4, 9), kOverlap, 4), (TileCounts{1, 1, 3}));
  EXPECT_EQ(automatic_decoder_counts(latent(3, 8, 4), kOverlap, 2), (TileCounts{1, 2, 1}));
  EXPECT_EQ(automatic_decoder_counts(latent(3, 2, 4), kOverlap, 8), (TileCounts{1, 1, 1}));
}

TEST(DecodePlanTest, EveryAutomaticGridCanBePlanned) {
  for (int64_t rows = 1; rows <= 9; ++rows) {
    for (int64_t columns = 1; columns <= 9; ++columns) {
      for (int64_t world_size = 1; world_size <= 8; ++world_size) {
        const VideoLatentSize size = latent(2, rows, columns);
        const TileCounts counts = automatic_decoder_counts(size, kOverlap, world_size);
        EXPECT_LE(counts.num_tiles(), world_size);
        EXPECT_EQ(grid_of(size, counts).num_tiles(), counts.num_tiles());
      }
    }
  }
}

TEST(DecodePlanTest, GridThatDoesNotFitIsRefusedByName) {
  EXPECT_THAT(
      [] {
        grid_of(latent(3, 4, 5), {1, 1, 2});
      },
      ::testing::ThrowsMessage<Error>(
          AllOf(HasSubstr("decoder.tiles"), HasSubstr("width"), HasSubstr("at least 6 latent"))));
}

TEST(DecodePlanTest, LargestTileComesFirstAndLoadsAreLevel) {
  // Rows of 7 and 6 cells, columns of 8 and 7.
  const vae::TilePlan grid = grid_of(latent(2, 9, 11), {1, 2, 2});
  EXPECT_THAT(deal_tiles(grid, 4), ElementsAre(ElementsAre(TileShare{0, 0}, TileShare{1, 1},
                                                           TileShare{2, 2}, TileShare{3, 3})));
  // 56, 49, 48, 42 cells: the third goes to the rank with less.
  EXPECT_THAT(deal_tiles(grid, 2), ElementsAre(ElementsAre(TileShare{0, 0}, TileShare{1, 1},
                                                           TileShare{2, 1}, TileShare{3, 0})));
}

TEST(DecodePlanTest, TimeComesBeforeSize) {
  const vae::TilePlan grid = grid_of(latent(7, 4, 6), {3, 1, 2}, {1, 4, 4});
  const auto batches = deal_tiles(grid, 4);
  ASSERT_EQ(batches.size(), 3U);
  std::set<int64_t> dealt;
  for (size_t f = 0; f < batches.size(); ++f) {
    ASSERT_EQ(batches[f].size(), 2U);
    for (const TileShare& share : batches[f]) {
      EXPECT_EQ(share.tile_idx / 2, static_cast<int64_t>(f));
      EXPECT_LT(share.rank, 4);
      dealt.insert(share.tile_idx);
    }
  }
  EXPECT_EQ(dealt.size(), 6U);
  EXPECT_EQ(batches[0][0].rank, 0) << "the driver has work from the start";
}

TEST(DecodePlanTest, MoreRanksThanTilesLeaveRanksWithoutWork) {
  const auto batches = deal_tiles(grid_of(latent(2, 4, 6), {1, 1, 2}), 8);
  EXPECT_THAT(batches, ElementsAre(ElementsAre(TileShare{0, 0}, TileShare{1, 1})));
}

std::vector<int64_t> piece_lengths(const DecodePlan& plan) {
  std::vector<int64_t> lengths;
  for (const auto& span : plan.pieces.frames) lengths.push_back(span.output.size());
  return lengths;
}

TEST(DecodePlanTest, PiecesCutTheClipIntoRunsOfFramesForEachRank) {
  const vae::TilePlan grid = grid_of(latent(3, 4, 6), {1, 1, 2});
  EXPECT_THAT(piece_lengths(plan_decode(grid, {}, kScale, 2)), ElementsAre(9, 8));
  // Fewer runs than ranks.
  EXPECT_THAT(piece_lengths(plan_decode(grid, {}, kScale, 8)), ElementsAre(3, 3, 3, 3, 3, 2));
}

TEST(DecodePlanTest, PiecesEndWhereATilesOwnBatchesEnd) {
  const vae::TilePlan grid = grid_of(latent(6, 4, 6), {1, 1, 2});
  const diffusion::VideoTiling inside{.frames = AxisTiling::of_size(24, 8)};
  const DecodePlan plan = plan_decode(grid, inside, kScale, 3);  // 41 frames: runs of 14
  std::set<int64_t> ends;
  for (const auto& span : plan.pieces.frames) {
    EXPECT_LE(span.output.size(), 14);
    ends.insert(span.output.end);
  }
  int64_t end = 0;
  for (const int64_t frames : plan.tiles[0].batch_frames()) {
    end += frames;
    EXPECT_TRUE(ends.contains(end)) << end;
  }
  EXPECT_EQ(end, 41);
  EXPECT_EQ(plan.num_tiles(), 2 * static_cast<int64_t>(plan.tiles[0].frames.size()));
}

TEST(DecodePlanTest, TimeIsCutOnce) {
  const vae::TilePlan grid = grid_of(latent(8, 4, 4), {2, 1, 1}, {1, 4, 4});
  const auto inside = [](int64_t frames) {
    return diffusion::VideoTiling{.frames = AxisTiling::of_size(frames, 8)};
  };
  EXPECT_THAT([&] { plan_decode(grid, inside(24), kScale, 2); },
              ::testing::ThrowsMessage<Error>(
                  AllOf(HasSubstr("decoder.tiles.grid"), HasSubstr("decoder.tiling.temporal"))));
  // A size that does not cut the tiles is no second cut.
  EXPECT_EQ(plan_decode(grid, inside(80), kScale, 2).num_tiles(), 2);
  // Space may be cut by both.
  const diffusion::VideoTiling space{.height = AxisTiling::of_size(64, 32)};
  EXPECT_EQ(plan_decode(grid, space, kScale, 2).num_tiles(), 6);
}

TEST(DecodePlanTest, DescribesTheTilesPlanned) {
  const DecodePlan two = plan_decode(grid_of(latent(2, 4, 6), {1, 1, 2}), {}, kScale, 4);
  EXPECT_EQ(two.describe(4),
            "over 2 ranks: 2 tiles: 1 x 1 x 2 (frames x height x width), at most 9 x 128 x 160; "
            "inside a rank not tiled");
  const DecodePlan one = plan_decode(grid_of(latent(2, 4, 6), {}), {}, kScale, 2);
  EXPECT_EQ(one.describe(1), "not tiled");
  EXPECT_EQ(one.describe(2), "on rank 0 alone, not tiled");
}

}  // namespace
}  // namespace flotilla::parallel
