// Tile geometry against the LTX-2 Python reference, commit 400fd31: splits to the integer, masks,
// and the slices and masks of a distributed decode.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "diffusion/latent_size.h"
#include "diffusion/tiling.h"
#include "support/compare.h"
#include "support/golden.h"

namespace flotilla::diffusion {
namespace {

using nlohmann::json;
using test::all_close;

constexpr double kTolerance = 1e-6;

const json& tiling_json() {
  static const json parsed = json::parse(std::ifstream(test::golden_dir() / "tiling.json"));
  return parsed;
}

// The integers in a name: "n2_ov5_dim7" -> {2, 5, 7}.
std::vector<int64_t> integers_in(const std::string& name) {
  std::vector<int64_t> found;
  bool inside = false;
  for (const char letter : name) {
    const bool digit = letter >= '0' && letter <= '9';
    if (digit && !inside) found.push_back(0);
    if (digit) found.back() = found.back() * 10 + (letter - '0');
    inside = digit;
  }
  return found;
}

using Split = std::function<std::vector<Interval>(int64_t length, int64_t value, int64_t overlap)>;

// Every entry of `section` is named by (value, overlap, length); an "error" must be an error here.
void expect_splits(const std::string& section, const Split& split) {
  const json& cases = tiling_json().at(section);
  ASSERT_FALSE(cases.empty());
  for (const auto& [name, expected] : cases.items()) {
    SCOPED_TRACE(section + " " + name);
    const auto sizes = integers_in(name);
    ASSERT_EQ(sizes.size(), 3u);
    if (expected.is_object()) {
      EXPECT_THROW(split(sizes[2], sizes[0], sizes[1]), Error);
      continue;
    }
    json actual = json::array();
    for (const Interval& i : split(sizes[2], sizes[0], sizes[1])) {
      actual.push_back({i.start, i.end, i.left_ramp, i.right_ramp});
    }
    EXPECT_EQ(actual, expected);
  }
}

TEST(TilingGoldenTest, SplitsByCount) { expect_splits("split_by_count", split_by_count); }
TEST(TilingGoldenTest, SplitsByCountCausally) {
  expect_splits("split_by_count_temporal_causal", split_by_count_causal);
}
TEST(TilingGoldenTest, SplitsBySize) { expect_splits("split_by_size", split_by_size); }
TEST(TilingGoldenTest, SplitsBySizeCausally) {
  expect_splits("split_temporal_causal", split_by_size_causal);
}

TEST(TilingGoldenTest, BalancesGrids) {
  const json& cases = tiling_json().at("balanced_tile_split");
  ASSERT_FALSE(cases.empty());
  for (const auto& [count, expected] : cases.items()) {
    const auto [small, large] = balanced_tile_split(std::stoll(count));
    EXPECT_EQ(json({small, large}), expected) << count;
  }
}

TEST(TilingGoldenTest, DefaultTilesFollowTheLongSide) {
  const json& cases = tiling_json().at("from_long_side_768_64");
  ASSERT_FALSE(cases.empty());
  const auto as_json = [](const AxisTiling& axis) { return json({axis.value, axis.overlap}); };
  for (const auto& [name, expected] : cases.items()) {
    SCOPED_TRACE(name);
    const auto sides = integers_in(name);
    const VideoTiling tiling = default_tiling(sides.at(0), sides.at(1), ScaleFactors{}.height);
    for (const auto& [key, value] : expected.items()) {
      if (key.starts_with("chunks_")) {
        EXPECT_EQ(num_temporal_batches(integers_in(key).at(0), tiling.frames), value) << key;
      }
    }
    EXPECT_EQ(as_json(tiling.height), expected.at("height"));
    EXPECT_EQ(as_json(tiling.width), expected.at("width"));
    EXPECT_EQ(as_json(tiling.frames), expected.at("frames"));
  }
}

TEST(TilingGoldenTest, MasksAgree) {
  const test::Golden golden("tiling_masks");
  const auto names = golden.names("mask.");
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    const auto n = integers_in(name);  // length, left, right, whether the left ramp starts at zero
    const RampStart start = n.at(3) == 1 ? RampStart::zero : RampStart::above_zero;
    EXPECT_TRUE(all_close(trapezoid_mask(n[0], n[1], n[2], start), golden[name], kTolerance))
        << name;
  }
}

TEST(TilingGoldenTest, IntervalsMapToPixelsAndFrames) {
  const test::Golden golden("tiling_masks");
  const auto names = golden.names("map_");
  ASSERT_FALSE(names.empty());
  const ScaleFactors scale;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const auto n = integers_in(name);
    const Interval interval{n.at(0), n.at(1), n.at(2), n.at(3)};
    const OutputSpan span = name.starts_with("map_temporal.") ? map_temporal(interval, scale.time)
                                                              : map_spatial(interval, scale.height);
    if (name.ends_with(".slice")) {
      EXPECT_TRUE(test::same_bytes(at::tensor({span.begin, span.end}, at::kLong), golden[name]));
    } else {
      EXPECT_TRUE(all_close(span.mask, golden[name], kTolerance));
    }
  }
}

// Grids of latent tiles as tiled denoising uses them: plain splits, masks in latent cells.
TEST(TilingGoldenTest, GridWeightsAgree) {
  const test::Golden golden("tiling_masks");
  const std::string coordinates = ".coords_h0h1w0w1";
  int64_t grids = 0;
  for (const std::string& name : golden.names("grid.")) {
    if (!name.ends_with(coordinates)) continue;
    ++grids;
    SCOPED_TRACE(name);
    const std::string stem = name.substr(0, name.size() - coordinates.size());
    const auto n = integers_in(stem);  // tiles high, tiles wide, overlap, height, width
    const at::Tensor expected = golden[name];
    int64_t tile = 0;
    for (const Interval& h : split_by_count(n.at(3), n.at(0), n.at(2))) {
      for (const Interval& w : split_by_count(n.at(4), n.at(1), n.at(2))) {
        EXPECT_TRUE(test::same_bytes(at::tensor({h.start, h.end, w.start, w.end}, at::kLong),
                                     expected[tile]));
        const at::Tensor blend = at::outer(trapezoid_mask(h.size(), h.left_ramp, h.right_ramp),
                                           trapezoid_mask(w.size(), w.left_ramp, w.right_ramp));
        EXPECT_TRUE(all_close(blend, golden[stem + ".blend." + std::to_string(tile)], kTolerance));
        ++tile;
      }
    }
    EXPECT_EQ(tile, expected.size(0));
  }
  EXPECT_GT(grids, 0);
}

struct NamedCount {
  const char* name;
  VideoTiling tiling;
};

TEST(TilingGoldenTest, DistributedDecodeTilesAgree) {
  const test::Golden golden("distributed_decoder");
  const ScaleFactors scale;
  const NamedCount cases[] = {
      {"dec22", {{}, AxisTiling::of_count(2, 4), AxisTiling::of_count(2, 4)}},
      {"dec12", {{}, {}, AxisTiling::of_count(2, 4)}},
      {"t2", {AxisTiling::of_count(2, 1), {}, {}}},
  };
  for (const auto& [label, tiling] : cases) {
    SCOPED_TRACE(label);
    const std::string stem = label;
    const at::Tensor latent = golden[stem + ".latent"];
    const auto frames =
        split_axis(tiling.frames, "frames", AxisKind::time, latent.size(2), scale.time);
    const auto rows =
        split_axis(tiling.height, "height", AxisKind::space, latent.size(3), scale.height);
    const auto columns =
        split_axis(tiling.width, "width", AxisKind::space, latent.size(4), scale.width);
    std::vector<int64_t> cells, pixels;
    int64_t tile = 0;
    for (const Interval& f : frames) {
      for (const Interval& h : rows) {
        for (const Interval& w : columns) {
          const OutputSpan spans[] = {map_temporal(f, scale.time), map_spatial(h, scale.height),
                                      map_spatial(w, scale.width)};
          for (const Interval& i : {f, h, w}) cells.insert(cells.end(), {i.start, i.end});
          for (size_t axis = 0; axis < 3; ++axis) {
            pixels.insert(pixels.end(), {spans[axis].begin, spans[axis].end});
            const std::string mask =
                stem + ".tile" + std::to_string(tile) + ".mask_" + std::string(1, "fhw"[axis]);
            EXPECT_TRUE(all_close(spans[axis].mask, golden[mask], kTolerance)) << mask;
          }
          ++tile;
        }
      }
    }
    EXPECT_TRUE(at::equal(at::tensor(cells, at::kLong).view({-1, 3, 2}),
                          golden[stem + ".tiles.latent_slices"]));
    EXPECT_TRUE(at::equal(at::tensor(pixels, at::kLong).view({-1, 3, 2}),
                          golden[stem + ".tiles.pixel_slices"]));
  }
}

}  // namespace
}  // namespace flotilla::diffusion
