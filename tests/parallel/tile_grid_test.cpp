// The geometry of tiled denoising: grids, blend weights, which tokens a tile sees, and what is
// refused with which advice.
#include "parallel/tile_grid.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "diffusion/positions.h"
#include "support/compare.h"

namespace flotilla::parallel {
namespace {

using diffusion::VideoGrid;
using diffusion::VideoLatentSize;
using ::testing::HasSubstr;
using ::testing::Not;

VideoLatentSize latent(int64_t frames, int64_t height, int64_t width) {
  return {.frames = frames, .height = height, .width = width};
}

template <typename Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.what();
  }
  return "accepted";
}
std::string refusal(const VideoLatentSize& size, const TileCounts& counts, int64_t overlap) {
  return refusal([&] { make_tile_grid(size, counts, overlap); });
}

TEST(TileCountsTest, SmallerFactorIsOnTheHeight) {
  EXPECT_EQ(balanced_tile_counts(1), (TileCounts{1, 1, 1}));
  EXPECT_EQ(balanced_tile_counts(3), (TileCounts{1, 1, 3}));
  EXPECT_EQ(balanced_tile_counts(6), (TileCounts{1, 2, 3}));
  EXPECT_EQ(balanced_tile_counts(8), (TileCounts{1, 2, 4}));
}

// The sum of all tiles' weights in each cell of the clip.
at::Tensor sum_of_weights(const TileGrid& grid) {
  const auto& size = grid.size;
  const at::Tensor sum = at::zeros({size.frames, size.height, size.width});
  for (const LatentTile& tile : grid.tiles) {
    sum.slice(0, tile.frames.start, tile.frames.end)
        .slice(1, tile.rows.start, tile.rows.end)
        .slice(2, tile.columns.start, tile.columns.end)
        .add_(tile.blend);
  }
  return sum;
}

TEST(TileGridTest, WeightsSumToOne) {
  for (const auto& [size, counts, overlap] :
       std::vector<std::tuple<VideoLatentSize, TileCounts, int64_t>>{
           {latent(2, 7, 8), {1, 2, 2}, 5},
           {latent(3, 17, 30), {1, 2, 4}, 5},
           {latent(9, 7, 9), {2, 1, 2}, 3},
           {latent(1, 6, 6), {1, 2, 3}, 0},
           {latent(1, 4, 8), {1, 1, 3}, 5},  // three tiles share a cell
           {latent(1, 11, 13), {1, 6, 8}, 5},
       }) {
    const TileGrid grid = make_tile_grid(size, counts, overlap);
    EXPECT_EQ(static_cast<int64_t>(grid.tiles.size()), counts.num_tiles());
    const at::Tensor sum = sum_of_weights(grid);
    EXPECT_TRUE(test::all_close(sum, at::ones_like(sum), 1e-6, 0)) << grid.describe();
  }
}

TEST(TileGridTest, OneTileIsTheWholeClipWhateverTheOverlap) {
  const TileGrid grid = make_tile_grid(latent(2, 3, 4), balanced_tile_counts(1), 5);
  ASSERT_EQ(grid.tiles.size(), 1u);
  EXPECT_TRUE(test::same_bytes(grid.tiles[0].blend, at::ones({2, 3, 4})));
  EXPECT_EQ(grid.describe(), "1 tile, the whole clip");
}

TEST(TileGridTest, DescribesItself) {
  EXPECT_EQ(make_tile_grid(latent(3, 17, 30), {1, 2, 4}, 5).describe(),
            "8 tiles (2 rows x 4 columns) of up to 11 x 12 latent cells, overlap 5");
  EXPECT_EQ(make_tile_grid(latent(8, 7, 8), {2, 1, 2}, 2).describe(),
            "4 tiles (2 frames x 1 rows x 2 columns) of up to 5 x 7 x 5 latent cells, overlap 2");
}

TEST(TileGridTest, TilesMustBeLargerThanTheOverlap) {
  EXPECT_EQ(refusal(latent(1, 7, 7), {1, 2, 2}, 5), "accepted");
  EXPECT_THAT(refusal(latent(1, 7, 6), {1, 1, 2}, 5),
              HasSubstr("2 columns of tiles need 7 latent cells, there are 6"));
}

TEST(TileGridTest, RefusalTellsAllFaultsAndWhatFits) {
  const std::string both = refusal(latent(1, 4, 8), {1, 2, 4}, 5);
  EXPECT_THAT(both, HasSubstr("2 rows of tiles need 7 latent cells, there are 4"));
  EXPECT_THAT(both, HasSubstr("4 columns of tiles need 9 latent cells, there are 8"));
  EXPECT_THAT(both, HasSubstr("at most 1 x 3 tiles (rows x columns)"));
  EXPECT_THAT(both, HasSubstr("an overlap of 2"));
  EXPECT_THAT(refusal(latent(1, 4, 12), {1, 2, 2}, 5), HasSubstr("a grid of [1, 1, 4]"));
  EXPECT_THAT(refusal(latent(1, 2, 2), {1, 2, 2}, 5), Not(HasSubstr("an overlap of")));
}

// Whatever the advice is, following it works.
TEST(TileGridTest, AdvisedOverlapFits) {
  for (int64_t height = 3; height < 12; ++height) {
    const std::string text = refusal(latent(1, height, 9), {1, 2, 2}, 8);
    const size_t at = text.find("an overlap of ");
    ASSERT_NE(at, std::string::npos) << text;
    const int64_t advised = std::stoll(text.substr(at + 14));
    EXPECT_EQ(refusal(latent(1, height, 9), {1, 2, 2}, advised), "accepted");
  }
}

TEST(TileGridTest, ImpossibleCountsAreRefused) {
  EXPECT_THAT(refusal(latent(1, 8, 8), {1, 0, 2}, 5), HasSubstr("does not exist"));
  EXPECT_THAT(refusal(latent(1, 8, 8), {1, 2, 2}, -1), HasSubstr("does not exist"));
  EXPECT_THAT(refusal([] { balanced_tile_counts(0); }), HasSubstr("does not exist"));
}

TEST(FirstSigmaTest, NoisyStartNeedsAReference) {
  EXPECT_EQ(refusal([] { check_first_sigma(0.7, 0.7, false); }), "accepted");
  EXPECT_EQ(refusal([] { check_first_sigma(0.909, 0.7, true); }), "accepted");
  const std::string text = refusal([] { check_first_sigma(0.909, 0.7, false); });
  EXPECT_THAT(text, HasSubstr("starts at sigma 0.909, above max_first_sigma (0.7)"));
  EXPECT_THAT(text, HasSubstr("start lower, or add an image with a negative frame"));
}

// A clip of 2 x 7 x 8 cells in two tiles of columns [0, 7) and [2, 8), with these conditioning
// tokens appended.
class TokensTest : public ::testing::Test {
 protected:
  std::vector<TileTokens> assign(const at::Tensor& conditioning,
                                 TilePositions mode = TilePositions::normalized) {
    const auto grid = make_tile_grid(clip_.size, {1, 1, 2}, 5);
    return assign_tokens(grid, at::cat({diffusion::video_positions(clip_), conditioning}, 2), mode);
  }
  at::Tensor keyframe(int64_t pixel_frame) const {
    return diffusion::keyframe_positions(clip_, latent(1, clip_.size.height, clip_.size.width),
                                         pixel_frame);
  }

  const VideoGrid clip_{.size = latent(2, 7, 8)};
};

TEST_F(TokensTest, ConditioningGoesToTheTilesItOverlaps) {
  const auto tiles = assign(keyframe(0));
  const int64_t rows = clip_.size.height;
  EXPECT_EQ(tiles[0].num_tokens() - tiles[0].num_clip_tokens, rows * 7);
  EXPECT_EQ(tiles[1].num_tokens() - tiles[1].num_clip_tokens, rows * 6);
  // Of the 8 columns of the keyframe's first row, the first tile has 0 to 6, the last five shared.
  EXPECT_TRUE(test::same_bytes(
      tiles[0].weights.slice(0, tiles[0].num_clip_tokens, tiles[0].num_clip_tokens + 7),
      at::tensor({1.0F, 1.0F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F})));
}

TEST_F(TokensTest, TokensBeforeTheClipGoToAllTiles) {
  const at::Tensor reference = keyframe(-1);
  ASSERT_LT(reference.select(1, 0).min().item<double>(), 0.0);
  for (const TileTokens& tile : assign(reference)) {
    const at::Tensor weights = tile.weights.slice(0, tile.num_clip_tokens);
    EXPECT_EQ(weights.size(0), reference.size(2));
    EXPECT_TRUE(weights.eq(0.5F).all().item<bool>());
  }
}

TEST_F(TokensTest, TokensAfterTheClipGoToNone) {
  for (const TileTokens& tile : assign(keyframe(1000)))
    EXPECT_EQ(tile.num_tokens(), tile.num_clip_tokens);
}

TEST_F(TokensTest, WeightsOfATokenSumToOne) {
  const at::Tensor conditioning = at::cat({keyframe(0), keyframe(-5), keyframe(8)}, 2);
  const at::Tensor sum = at::zeros({clip_.size.num_tokens() + conditioning.size(2)});
  for (const TileTokens& tile : assign(conditioning)) sum.index_add_(0, tile.keep, tile.weights);
  EXPECT_TRUE(test::all_close(sum, at::ones_like(sum), 1e-6, 0));
}

TEST_F(TokensTest, OwnTokensStartAtZeroOnEveryAxis) {
  const auto tiles = assign(keyframe(-1));
  for (const TileTokens& tile : tiles) {
    const at::Tensor own = tile.positions.slice(2, 0, tile.num_clip_tokens).select(3, 0);
    EXPECT_TRUE(test::same_bytes(own.amin(2), at::zeros({1, 3})));
  }
  // The second tile starts at column 2: shared tokens move along, to the left of it.
  EXPECT_EQ(tiles[1].positions.select(1, 2).min().item<double>(), -2.0 * clip_.scale.width);
}

TEST_F(TokensTest, AbsolutePositionsAreThoseOfTheClip) {
  const at::Tensor conditioning = keyframe(0);
  const at::Tensor all = at::cat({diffusion::video_positions(clip_), conditioning}, 2);
  for (const TileTokens& tile : assign(conditioning, TilePositions::absolute))
    EXPECT_TRUE(test::same_bytes(tile.positions, all.index_select(2, tile.keep)));
}

}  // namespace
}  // namespace flotilla::parallel
