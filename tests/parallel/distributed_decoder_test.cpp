// The decoder over ranks against one rank that decodes the same tiles: equal bytes for any number
// of ranks, tiles and cuts; the golden frames of the LTX-2 Python reference, commit 400fd31; and
// what happens when a rank fails.
#include "parallel/distributed_decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "comm/agreement.h"
#include "support/compare.h"
#include "support/golden.h"
#include "support/mpi_main.h"

namespace flotilla::parallel {
namespace {

using diffusion::AxisTiling;
using diffusion::VideoTiling;
using ::testing::HasSubstr;
using vae::VideoDecoder;

constexpr double kTolerance = 2e-5;

VideoDecoder open(const char* file) {
  return VideoDecoder::from_checkpoint(test::open_tiny(file), at::kFloat, at::kCPU);
}

DecodePlan plan_of(const VideoDecoder& decoder, const at::Tensor& latent, const DecoderGrid& grid,
                   const VideoTiling& inside, int64_t world_size) {
  diffusion::VideoLatentSize size;
  size.frames = latent.size(2);
  size.height = latent.size(3);
  size.width = latent.size(4);
  return plan_decode(plan_decoder_grid(grid, size, decoder.scale()), inside, decoder.scale(),
                     world_size);
}

// Frames in the order in which they came, and the tiles that were counted.
struct Decoded {
  std::vector<at::Tensor> batches;
  std::vector<int64_t> counted;

  at::Tensor frames() const { return batches.empty() ? at::Tensor() : at::cat(batches, 0); }
};

Decoded decode(const VideoDecoder& decoder, const at::Tensor& latent, const DecodePlan& plan,
               comm::Communicator* ranks) {
  Decoded decoded;
  const DistributedDecoder distributed(plan, ranks);
  distributed.decode(
      distributed.has_tiles() ? &decoder : nullptr, latent,
      [&](const at::Tensor& frames) { decoded.batches.push_back(frames.clone()); },
      [&](int64_t done, int64_t total) {
        EXPECT_EQ(total, plan.num_tiles());
        decoded.counted.push_back(done);
      });
  return decoded;
}

class DistributedDecoderTest : public ::testing::Test {
 protected:
  at::Tensor random_latent(int64_t frames, int64_t rows, int64_t columns) const {
    at::manual_seed(5);
    return at::randn({1, decoder_.config().latent_channels, frames, rows, columns});
  }
  comm::Communicator& ranks() const { return test::ranks().decoder(); }
  // All ranks together; then, on the driver, this rank alone.
  std::pair<Decoded, Decoded> decode_both(const at::Tensor& latent, const DecoderGrid& grid,
                                          const VideoTiling& inside = {}) const {
    const DecodePlan plan = plan_of(decoder_, latent, grid, inside, ranks().world_size());
    Decoded together = decode(decoder_, latent, plan, &ranks());
    if (!ranks().is_driver()) {
      EXPECT_TRUE(together.batches.empty());
      return {};
    }
    const DecodePlan alone = plan_of(decoder_, latent, grid, inside, 1);
    return {std::move(together), decode(decoder_, latent, alone, nullptr)};
  }
  void expect_equal(const std::pair<Decoded, Decoded>& decoded) const {
    if (!ranks().is_driver()) return;
    EXPECT_TRUE(test::same_bytes(decoded.first.frames(), decoded.second.frames()));
  }

  const VideoDecoder decoder_ = open("vae-small-23.safetensors");
};

TEST_F(DistributedDecoderTest, AllRanksGiveTheBytesOfOneRankWithTheSameTiles) {
  const at::Tensor latent = random_latent(4, 5, 6);
  const std::pair<DecoderGrid, VideoTiling> cases[] = {
      {{{1, 1, 1}}, {}},
      {{{1, 1, 2}}, {}},
      {{{1, 2, 3}, {1, 2, 2}}, {}},  // unequal tiles
      {{{3, 1, 1}, {1, 0, 0}}, {}},  // time over the ranks
      {{{2, 2, 2}, {0, 1, 2}}, {}},
      {{{1, 1, 2}}, {.frames = AxisTiling::of_size(16, 8)}},  // time inside a rank
      {{{1, 2, 1}, {1, 1, 1}},
       {.frames = AxisTiling::of_size(24, 8), .width = AxisTiling::of_size(96, 32)}},
      {{{2, 1, 1}, {1, 0, 0}}, {.width = AxisTiling::of_size(128, 64)}},
  };
  for (const auto& [grid, inside] : cases) {
    SCOPED_TRACE(fmt::format("grid {} x {} x {}", grid.counts.frames, grid.counts.rows,
                             grid.counts.columns));
    const auto decoded = decode_both(latent, grid, inside);
    expect_equal(decoded);
    if (!ranks().is_driver()) continue;
    const auto& counted = decoded.first.counted;
    EXPECT_TRUE(std::is_sorted(counted.begin(), counted.end()));
    EXPECT_EQ(counted.back(), decoded.second.counted.back());
  }
}

TEST_F(DistributedDecoderTest, OneTileIsThePlainDecode) {
  const at::Tensor latent = random_latent(2, 3, 3);
  const auto decoded = decode_both(latent, {});
  expect_equal(decoded);
  if (!ranks().is_driver()) return;
  const at::Tensor plain =
      vae::to_unit_range(decoder_.decode(latent))[0].permute({1, 2, 3, 0});  // [F, H, W, 3]
  EXPECT_TRUE(test::same_bytes(decoded.first.frames(), plain.contiguous()));
}

TEST_F(DistributedDecoderTest, FramesComeInRunsWhileOthersAreStillDecoded) {
  const at::Tensor latent = random_latent(3, 2, 6);  // 17 frames
  const Decoded together = decode_both(latent, {{1, 1, 2}}).first;
  const auto world = static_cast<int64_t>(ranks().world_size());
  if (!ranks().is_driver()) return;
  const int64_t run = (17 + world - 1) / world;
  ASSERT_EQ(static_cast<int64_t>(together.batches.size()), (17 + run - 1) / run);
  for (size_t i = 0; i + 1 < together.batches.size(); ++i)
    EXPECT_EQ(together.batches[i].size(0), run);
}

TEST_F(DistributedDecoderTest, FlatLatentsShowNoTileBorders) {
  const at::Tensor latent = at::zeros({1, decoder_.config().latent_channels, 2, 6, 6});
  const Decoded together = decode_both(latent, {{1, 2, 2}}).first;
  const Decoded one_tile = decode_both(latent, {}).first;
  if (!ranks().is_driver()) return;
  // Weights that do not add up to one would darken the overlaps.
  EXPECT_NEAR(together.frames().mean().item<double>(), one_tile.frames().mean().item<double>(),
              0.02);
  EXPECT_NEAR(together.frames().std().item<double>(), one_tile.frames().std().item<double>(), 0.03);
}

// A NaN in the last column: the rank with that tile finds it.
TEST_F(DistributedDecoderTest, TileThatIsNotFiniteStopsAllRanksAlike) {
  at::Tensor latent = random_latent(3, 2, 6);
  latent[0][0][0][0][5] = std::numeric_limits<float>::quiet_NaN();
  const DecodePlan plan = plan_of(decoder_, latent, {{1, 1, 2}}, {}, ranks().world_size());
  try {
    comm::agreed(ranks(), [&] { decode(decoder_, latent, plan, &ranks()); });
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::non_finite);
    EXPECT_THAT(error.what(), HasSubstr("tile 2 of 2"));
  }
  // Nothing is left on the way: the next decode works.
  expect_equal(decode_both(random_latent(3, 2, 6), {{1, 1, 2}}));
}

// A full disk, say: frames that cannot be taken stop the ranks that still decode.
TEST_F(DistributedDecoderTest, DriverThatCannotGoOnStopsTheOthers) {
  const at::Tensor latent = random_latent(4, 2, 6);
  for (const DecoderGrid& grid : {DecoderGrid{{1, 1, 2}}, DecoderGrid{{3, 1, 2}, {1, 4, 4}}}) {
    const DecodePlan plan = plan_of(decoder_, latent, grid, {}, ranks().world_size());
    try {
      comm::agreed(ranks(), [&] {
        DistributedDecoder(plan, &ranks()).decode(&decoder_, latent, [](const at::Tensor&) {
          fail(ErrorKind::output, "no space left on device");
        });
      });
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::output);
    }
  }
  expect_equal(decode_both(latent, {{1, 1, 2}}));
}

TEST_F(DistributedDecoderTest, RankThatIsToldToStopStopsAll) {
  const at::Tensor latent = random_latent(4, 2, 6);
  const DecodePlan plan = plan_of(decoder_, latent, {{1, 1, 2}}, {}, ranks().world_size());
  const int stopper = std::min(1, ranks().world_size() - 1);
  const auto run = [&] {
    comm::agreed(ranks(), [&] {
      DistributedDecoder(plan, &ranks())
          .decode(
              &decoder_, latent, [](const at::Tensor&) {},
              [&](int64_t, int64_t) {
                if (ranks().rank() == stopper) fail(ErrorKind::stopped, "asked to stop");
              });
    });
  };
  EXPECT_THAT(run, ::testing::ThrowsMessage<Error>(HasSubstr("asked to stop")));
}

// The golden cases: their tiles, masks, single tiles and assembled frames.
class DistributedDecoderGoldenTest : public DistributedDecoderTest {
 protected:
  struct Case {
    std::string name;
    DecoderGrid grid;
  };
  static std::vector<Case> cases() {
    return {{"dec22", {{1, 2, 2}}}, {"dec12", {{1, 1, 2}}}, {"t2", {{2, 1, 1}, {1, 0, 0}}}};
  }

  // Pixels of "<stem>_every<N>px", rows and columns thinned out by N.
  testing::AssertionResult pixels_close(const std::string& stem, const at::Tensor& frames) const {
    const std::string prefix = stem + "_every";
    const auto names = golden_.names(prefix);
    if (names.size() != 1) return testing::AssertionFailure() << "no golden " << stem;
    const int64_t step = std::stoll(names[0].substr(prefix.size()));
    return test::all_close(frames.slice(1, 0, {}, step).slice(2, 0, {}, step), golden_[names[0]],
                           kTolerance);
  }

  // The tiles of the plan as the golden lists them, [tiles, 3, 2].
  static at::Tensor slices(const vae::TilePlan& grid, bool pixels) {
    std::vector<int64_t> flat;
    for (int64_t i = 0; i < grid.num_tiles(); ++i) {
      const vae::Tile tile = grid.tile(i);
      for (const auto* span : {&tile.frames, &tile.rows, &tile.columns}) {
        flat.push_back(pixels ? span->output.begin : span->latent.start);
        flat.push_back(pixels ? span->output.end : span->latent.end);
      }
    }
    return at::tensor(flat, at::kLong).view({grid.num_tiles(), 3, 2});
  }

  void check_geometry(const std::string& name, const vae::TilePlan& grid) const {
    EXPECT_TRUE(test::same_bytes(slices(grid, false), golden_[name + ".tiles.latent_slices"]));
    EXPECT_TRUE(test::same_bytes(slices(grid, true), golden_[name + ".tiles.pixel_slices"]));
    for (int64_t i = 0; i < grid.num_tiles(); ++i) {
      const vae::Tile tile = grid.tile(i);
      const std::string mask = fmt::format("{}.tile{}.mask_", name, i);
      EXPECT_TRUE(test::all_close(tile.frames.output.mask, golden_[mask + "f"], kTolerance));
      EXPECT_TRUE(test::all_close(tile.rows.output.mask, golden_[mask + "h"], kTolerance));
      EXPECT_TRUE(test::all_close(tile.columns.output.mask, golden_[mask + "w"], kTolerance));
    }
  }

  const test::Golden golden_{"distributed_decoder"};
  const VideoDecoder reference_ = open("ltx23-dev.safetensors");
};

TEST_F(DistributedDecoderGoldenTest, TilesMasksAndFramesMatch) {
  for (const auto& [name, grid] : cases()) {
    SCOPED_TRACE(name);
    const at::Tensor latent = golden_[name + ".latent"];
    const DecodePlan plan = plan_of(reference_, latent, grid, {}, ranks().world_size());
    check_geometry(name, plan.grid);
    const at::Tensor frames = decode(reference_, latent, plan, &ranks()).frames();
    if (!ranks().is_driver()) continue;
    EXPECT_TRUE(pixels_close(name + ".assembled", frames));
    const at::Tensor tile = reference_.decode(plan.grid.tile_of(latent, plan.grid.num_tiles() - 1));
    EXPECT_TRUE(
        pixels_close(name + ".last_tile", vae::to_unit_range(tile)[0].permute({1, 2, 3, 0})));
    if (golden_.names(name + ".untiled").empty()) continue;
    const DecodePlan whole = plan_of(reference_, latent, {}, {}, 1);
    EXPECT_TRUE(
        pixels_close(name + ".untiled", decode(reference_, latent, whole, nullptr).frames()));
  }
}

// The reference hands the frames on in ceil(frames / world) at a time.
TEST_F(DistributedDecoderGoldenTest, RunsOfFramesMatch) {
  const std::string prefix = "gather.batch_lengths.frames";
  const auto names = golden_.names(prefix);
  ASSERT_EQ(names.size(), 1U);
  const int64_t frames = std::stoll(names[0].substr(prefix.size()));
  const at::Tensor expected = golden_[names[0]];  // a row for 1, 2, 3, 4 and 8 ranks, filled with 0
  const int64_t worlds[] = {1, 2, 3, 4, 8};
  const at::Tensor latent = at::zeros({1, 1, (frames - 1) / reference_.scale().time + 1, 1, 6});
  for (int64_t row = 0; row < expected.size(0); ++row) {
    const DecodePlan plan =
        plan_of(reference_, latent, {{1, 1, 2}}, {}, worlds[static_cast<size_t>(row)]);
    std::vector<int64_t> lengths(static_cast<size_t>(expected.size(1)), 0);
    ASSERT_LE(plan.pieces.frames.size(), lengths.size());
    for (size_t i = 0; i < plan.pieces.frames.size(); ++i)
      lengths[i] = plan.pieces.frames[i].output.size();
    EXPECT_TRUE(test::same_bytes(at::tensor(lengths, at::kLong), expected[row])) << row;
  }
}

}  // namespace
}  // namespace flotilla::parallel
