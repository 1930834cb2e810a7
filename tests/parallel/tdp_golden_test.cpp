// Tiled data parallelism against the LTX-2 Python reference, commit 400fd31: the tokens, positions
// and weights of every tile, and the velocities and x0 that the tiles make together; without
// conditioning, with a keyframe, and with a reference of which a part lies before the clip.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "parallel/tile_grid.h"
#include "parallel/tiled_velocity_model.h"
#include "support/compare.h"
#include "support/golden.h"
#include "transformer/inputs.h"

namespace flotilla::parallel {
namespace {

using test::all_close;
using transformer::LocalVelocityModel;
using transformer::Modality;
using transformer::TokenPositions;
using transformer::Velocity;
using transformer::VelocityModel;

constexpr double kTolerance = 2e-5;
constexpr double kMaskTolerance = 1e-6;

// "2x2_ov2": 2 rows x 2 columns, overlap 2; without "_ov" the default.
struct Cut {
  TileCounts counts;
  int64_t overlap = kDefaultTileOverlap;
};
Cut parse_cut(const std::string& name) {
  Cut cut;
  int rows = 0, columns = 0, overlap = kDefaultTileOverlap;
  if (std::sscanf(name.c_str(), "%dx%d_ov%d", &rows, &columns, &overlap) < 2)
    ADD_FAILURE() << "not a grid: " << name;
  return {{.rows = rows, .columns = columns}, overlap};
}

class TdpGoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  TdpGoldenTest()
      : golden_("tdp"),
        model_(test::open_tiny("ltx23-dev.safetensors"), at::kFloat, at::kCPU),
        video_(test::read_modality(golden_, state() + ".video")),
        audio_(test::read_modality(golden_, "audio")),
        positions_{golden_[state() + ".video.positions"], golden_["audio.positions"]} {
    const auto fhw = golden_.params().at("fhw").get<std::vector<int64_t>>();
    size_ = {.frames = fhw.at(0), .height = fhw.at(1), .width = fhw.at(2)};
  }

  std::string state() const { return GetParam(); }

  // Names of the grids that this state was computed with.
  std::vector<std::string> cuts() const {
    const std::string start = state() + ".", end = ".tile0.keep";
    std::vector<std::string> found;
    for (const std::string& name : golden_.names(start)) {
      if (!name.ends_with(end)) continue;
      found.push_back(name.substr(start.size(), name.size() - start.size() - end.size()));
    }
    EXPECT_GE(found.size(), 2u);
    return found;
  }

  TileGrid grid(const std::string& name) const {
    const Cut cut = parse_cut(name);
    return make_tile_grid(size_, cut.counts, cut.overlap);
  }
  TiledVelocityModel tiled(const std::string& cut,
                           TilePositions mode = TilePositions::normalized) const {
    return {model_, grid(cut), positions_, at::kFloat, {}, mode};
  }

  // Video's x0, and audio's where the golden has it.
  void check_x0(const VelocityModel& model, const std::string& key) const {
    const Velocity velocity = model.forward(&video_, &audio_, {});
    const at::Tensor video = video_.latent - golden_[state() + ".video.timesteps"] * velocity.video;
    EXPECT_TRUE(all_close(video, golden_[key + ".x0.video"], kTolerance)) << key;
    if (!golden_.has(key + ".x0.audio")) return;
    const at::Tensor audio = audio_.latent - golden_["audio.timesteps"] * velocity.audio;
    EXPECT_TRUE(all_close(audio, golden_[key + ".x0.audio"], kTolerance)) << key;
  }

  test::Golden golden_;
  transformer::Transformer model_;
  Modality video_;
  Modality audio_;
  TokenPositions positions_;
  diffusion::VideoLatentSize size_;
};

TEST_P(TdpGoldenTest, TilesKeepTheirTokens) {
  for (const std::string& cut : cuts()) {
    const TileGrid tiles = grid(cut);
    const auto assigned = assign_tokens(tiles, positions_.video);
    for (size_t i = 0; i < assigned.size(); ++i) {
      const std::string key = fmt::format("{}.{}.tile{}.", state(), cut, i);
      SCOPED_TRACE(key);
      const TileTokens& tile = assigned[i];
      EXPECT_TRUE(test::same_bytes(tile.keep, golden_[key + "keep"]));
      EXPECT_TRUE(all_close(tile.weights.slice(0, 0, tile.num_clip_tokens), golden_[key + "blend"],
                            kMaskTolerance));
      // The reference has these weights, possibly of no tokens, where there is conditioning.
      const at::Tensor conditioning = tile.weights.slice(0, tile.num_clip_tokens);
      if (golden_.has(key + "cond_weights")) {
        EXPECT_TRUE(all_close(conditioning, golden_[key + "cond_weights"], kMaskTolerance));
      } else {
        EXPECT_EQ(conditioning.numel(), 0);
      }
      if (golden_.has(key + "positions")) {
        EXPECT_TRUE(all_close(tile.positions, golden_[key + "positions"], kTolerance));
      }
    }
    const std::string one_more = fmt::format("{}.{}.tile{}.keep", state(), cut, assigned.size());
    EXPECT_FALSE(golden_.has(one_more)) << "the reference has more tiles";
  }
}

TEST_P(TdpGoldenTest, BlendedTilesMatch) {
  for (const std::string& cut : cuts()) check_x0(tiled(cut), state() + "." + cut);
}

TEST_P(TdpGoldenTest, UntiledPassMatches) {
  check_x0(LocalVelocityModel(model_, positions_, at::kFloat), state() + ".untiled");
}

INSTANTIATE_TEST_SUITE_P(States, TdpGoldenTest, ::testing::Values("plain", "keyframe", "reference"),
                         [](const auto& state) { return std::string(state.param); });

class PlainTdpGoldenTest : public TdpGoldenTest {};
INSTANTIATE_TEST_SUITE_P(States, PlainTdpGoldenTest, ::testing::Values("plain"));

TEST_P(PlainTdpGoldenTest, VelocitiesMatch) {
  const Velocity velocity = tiled("1x2").forward(&video_, &audio_, {});
  EXPECT_TRUE(all_close(velocity.video, golden_["plain.1x2.velocity.video"], kTolerance));
  EXPECT_TRUE(all_close(velocity.audio, golden_["plain.1x2.velocity.audio"], kTolerance));
}

// What rank 1 of 2 adds to the sum is the velocity of its tile, unweighted, and nothing else.
TEST_P(PlainTdpGoldenTest, VelocityOfOneTileMatches) {
  at::Tensor contribution;
  const TileOwner owner{1, 2, [&](at::Tensor& buffer) { contribution = buffer.clone(); }};
  const TileGrid tiles = grid("1x2");
  TiledVelocityModel(model_, tiles, positions_, at::kFloat, owner).forward(&video_, &audio_, {});

  const at::Tensor expected = golden_["plain.1x2.tile1.velocity"];  // [1, K, C]
  const int64_t before = tiles.tiles[0].num_tokens() * expected.size(2);
  const at::Tensor own = contribution.narrow(0, before, expected.numel());
  EXPECT_TRUE(all_close(own.view(expected.sizes()), expected, kTolerance));
  EXPECT_EQ(contribution.narrow(0, 0, before).count_nonzero().item<int64_t>(), 0);
}

TEST_P(PlainTdpGoldenTest, AbsolutePositionsMatch) {
  check_x0(tiled("1x2", TilePositions::absolute), "plain.1x2.not_normalised");
}

TEST(TileGridGoldenTest, CoordinatesAndWeightsMatch) {
  const test::Golden golden("tiling_masks");
  const std::string end = ".coords_h0h1w0w1";
  int64_t num_grids = 0;
  for (const std::string& name : golden.names("grid.")) {
    if (!name.ends_with(end)) continue;
    ++num_grids;
    SCOPED_TRACE(name);
    const std::string stem = name.substr(0, name.size() - end.size());
    int rows = 0, columns = 0, overlap = 0, height = 0, width = 0;
    ASSERT_EQ(std::sscanf(stem.c_str(), "grid.%dx%d_ov%d_%dx%d", &rows, &columns, &overlap, &height,
                          &width),
              5);
    const TileGrid grid = make_tile_grid({.frames = 2, .height = height, .width = width},
                                         {.rows = rows, .columns = columns}, overlap);
    const at::Tensor expected = golden[name];
    ASSERT_EQ(static_cast<int64_t>(grid.tiles.size()), expected.size(0));
    for (size_t i = 0; i < grid.tiles.size(); ++i) {
      const LatentTile& tile = grid.tiles[i];
      const std::vector<int64_t> bounds = {tile.rows.start, tile.rows.end, tile.columns.start,
                                           tile.columns.end};
      EXPECT_TRUE(
          test::same_bytes(at::tensor(bounds, at::kLong), expected[static_cast<int64_t>(i)]));
      for (int64_t frame = 0; frame < tile.frames.size(); ++frame) {
        EXPECT_TRUE(all_close(tile.blend[frame], golden[fmt::format("{}.blend.{}", stem, i)],
                              kMaskTolerance));
      }
    }
  }
  EXPECT_GT(num_grids, 0);
}

}  // namespace
}  // namespace flotilla::parallel
