#include "parallel/decode_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace flotilla::parallel {
namespace {

using diffusion::AxisTiling;
using diffusion::VideoLatentSize;

bool fits(int64_t length, int64_t count, int64_t overlap) {
  return count == 1 || length >= count + overlap;
}

// Cells of the longest of `count` tiles.
int64_t longest(int64_t length, int64_t count, int64_t overlap) {
  return (length + overlap * (count - 1) + count - 1) / count;
}

int64_t cells_of(const vae::TilePlan& grid, int64_t tile_idx) {
  const vae::Tile tile = grid.tile(tile_idx);
  return tile.frames.latent.size() * tile.rows.latent.size() * tile.columns.latent.size();
}

int64_t longest_of(const std::vector<vae::TileSpan>& spans) {
  int64_t most = 0;
  for (const vae::TileSpan& span : spans) most = std::max(most, span.latent.size());
  return most;
}

VideoLatentSize size_of(const vae::TilePlan& grid, int64_t tile_idx) {
  const vae::Tile tile = grid.tile(tile_idx);
  VideoLatentSize size;
  size.frames = tile.frames.latent.size();
  size.height = tile.rows.latent.size();
  size.width = tile.columns.latent.size();
  return size;
}

// The temporal batches of a tile that spans the clip in time, in runs of at most `most` frames.
std::vector<vae::TileSpan> frame_runs(const vae::TilePlan& tile, int64_t most) {
  std::vector<vae::TileSpan> runs;
  int64_t begin = 0;
  for (const int64_t frames : tile.batch_frames()) {
    const int64_t batch_end = begin + frames;
    for (; begin < batch_end; begin = runs.back().output.end) {
      const int64_t size = std::min(most, batch_end - begin);
      runs.push_back({{}, {begin, begin + size, at::ones({size}, at::kFloat)}});
    }
  }
  return runs;
}

}  // namespace

TileCounts automatic_decoder_counts(const VideoLatentSize& size,
                                    const std::array<int64_t, 3>& overlap, int64_t world_size) {
  const auto fits_both = [&](const TileCounts& counts) {
    return fits(size.height, counts.rows, overlap[1]) &&
           fits(size.width, counts.columns, overlap[2]);
  };
  const TileCounts balanced = balanced_tile_counts(world_size);
  if (fits_both(balanced)) return balanced;
  const auto cost = [&](const TileCounts& counts) {
    return std::pair(longest(size.height, counts.rows, overlap[1]) *
                         longest(size.width, counts.columns, overlap[2]),
                     counts.num_tiles());
  };
  TileCounts best;
  for (int64_t rows = 1; rows <= world_size; ++rows) {
    for (int64_t columns = 1; rows * columns <= world_size; ++columns) {
      const TileCounts counts{.rows = rows, .columns = columns};
      if (fits_both(counts) && cost(counts) < cost(best)) best = counts;
    }
  }
  return best;
}

vae::TilePlan plan_decoder_grid(const DecoderGrid& grid, const VideoLatentSize& size,
                                const diffusion::ScaleFactors& scale) {
  const auto& [counts, overlap] = grid;
  return with_context("decoder.tiles", [&] {
    return vae::plan_tiles({.frames = AxisTiling::of_count(counts.frames, overlap[0]),
                            .height = AxisTiling::of_count(counts.rows, overlap[1]),
                            .width = AxisTiling::of_count(counts.columns, overlap[2])},
                           size, scale);
  });
}

VideoLatentSize largest_tile(const vae::TilePlan& grid, const VideoLatentSize& size) {
  VideoLatentSize tile = size;
  tile.frames = longest_of(grid.frames);
  tile.height = longest_of(grid.rows);
  tile.width = longest_of(grid.columns);
  return tile;
}

std::vector<std::vector<TileShare>> deal_tiles(const vae::TilePlan& grid, int64_t world_size) {
  const auto tiles_per_batch = static_cast<int64_t>(grid.rows.size() * grid.columns.size());
  std::vector<int64_t> load(static_cast<size_t>(world_size), 0);  // latent cells of each rank
  std::vector<std::vector<TileShare>> batches;
  for (int64_t first = 0; first < grid.num_tiles(); first += tiles_per_batch) {
    std::vector<int64_t> order(static_cast<size_t>(tiles_per_batch));
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return cells_of(grid, a) > cells_of(grid, b); });
    auto& batch = batches.emplace_back();
    for (const int64_t tile_idx : order) {
      const auto least = std::min_element(load.begin(), load.end());
      batch.push_back({tile_idx, static_cast<int>(least - load.begin())});
      *least += cells_of(grid, tile_idx);
    }
  }
  return batches;
}

int64_t DecodePlan::num_tiles() const {
  int64_t sum = 0;
  for (const vae::TilePlan& tile : tiles) sum += tile.num_tiles();
  return sum;
}

std::string DecodePlan::describe(int64_t world_size) const {
  const vae::TilePlan& first = tiles.front();
  if (grid.num_tiles() == 1) {
    return world_size == 1 ? first.describe() : "on rank 0 alone, " + first.describe();
  }
  const int64_t ranks = std::min(world_size, grid.num_tiles());
  return fmt::format("over {} rank{}: {}; inside a rank {}", ranks, ranks == 1 ? "" : "s",
                     grid.describe(), first.describe());
}

DecodePlan plan_decode(vae::TilePlan grid, const diffusion::VideoTiling& inside,
                       const diffusion::ScaleFactors& scale, int64_t world_size) {
  DecodePlan plan;
  plan.grid = std::move(grid);
  for (int64_t i = 0; i < plan.grid.num_tiles(); ++i)
    plan.tiles.push_back(vae::plan_tiles(inside, size_of(plan.grid, i), scale));
  plan.pieces = plan.grid;
  if (plan.grid.frames.size() == 1) {
    const int64_t most = (plan.grid.num_frames() + world_size - 1) / world_size;
    plan.pieces.frames = frame_runs(plan.tiles.front(), most);
    return plan;
  }
  for (const vae::TilePlan& tile : plan.tiles) {
    if (tile.frames.size() == 1) continue;
    fail(ErrorKind::config,
         fmt::format("decoder.tiles.grid cuts time into {} tiles and decoder.tiling.temporal cuts "
                     "a tile of {} frames into {} more; only one of the two can cut time",
                     plan.grid.frames.size(), tile.num_frames(), tile.frames.size()));
  }
  return plan;
}

}  // namespace flotilla::parallel
