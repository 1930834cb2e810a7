#include "parallel/tile_grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace flotilla::parallel {
namespace {

using diffusion::Interval;
using diffusion::VideoLatentSize;

struct Axis {
  std::string_view name;
  int64_t length;
  int64_t count;

  bool fits(int64_t overlap) const { return count == 1 || length >= count + overlap; }
};

std::array<Axis, 3> axes_of(const VideoLatentSize& size, const TileCounts& counts) {
  return {{{"frames", size.frames, counts.frames},
           {"rows", size.height, counts.rows},
           {"columns", size.width, counts.columns}}};
}

bool fits(const VideoLatentSize& size, const TileCounts& counts, int64_t overlap) {
  const auto axes = axes_of(size, counts);
  return std::all_of(axes.begin(), axes.end(),
                     [&](const Axis& axis) { return axis.fits(overlap); });
}

// As many tiles in rows and columns that do fit, as square as can be.
std::optional<TileCounts> fitting_counts(const VideoLatentSize& size, const TileCounts& counts,
                                         int64_t overlap) {
  const int64_t tiles = counts.rows * counts.columns;
  std::optional<TileCounts> best;
  for (int64_t rows = 1; rows <= tiles; ++rows) {
    const TileCounts candidate{counts.frames, rows, tiles / rows};
    if (tiles % rows != 0 || !fits(size, candidate, overlap)) continue;
    if (!best || rows + tiles / rows < best->rows + best->columns) best = candidate;
  }
  return best;
}

// What the user can change, for a grid that does not fit.
std::string what_would_fit(const VideoLatentSize& size, const TileCounts& counts, int64_t overlap) {
  std::vector<std::string> ways;
  if (const auto other = fitting_counts(size, counts, overlap)) {
    ways.push_back(fmt::format("a grid of [{}, {}, {}] (frames, rows, columns)", other->frames,
                               other->rows, other->columns));
  } else {
    const auto most = [&](int64_t length) { return std::max<int64_t>(1, length - overlap); };
    ways.push_back(
        fmt::format("at most {} x {} tiles (rows x columns)", most(size.height), most(size.width)));
  }
  int64_t largest = overlap;
  for (const Axis& axis : axes_of(size, counts)) {
    if (axis.count > 1) largest = std::min(largest, axis.length - axis.count);
  }
  if (largest >= 1) ways.push_back(fmt::format("an overlap of {}", largest));
  return fmt::format("{}, a larger video, or sequence parallelism", fmt::join(ways, ", "));
}

void check_fit(const VideoLatentSize& size, const TileCounts& counts, int64_t overlap) {
  const auto axes = axes_of(size, counts);
  if (overlap < 0 || std::any_of(axes.begin(), axes.end(), [](auto& a) { return a.count < 1; })) {
    fail(ErrorKind::config, fmt::format("a tile grid of [{}, {}, {}] with overlap {} does not "
                                        "exist; counts start at 1, the overlap at 0",
                                        counts.frames, counts.rows, counts.columns, overlap));
  }
  std::vector<std::string> faults;
  for (const Axis& axis : axes) {
    if (axis.fits(overlap)) continue;
    faults.push_back(fmt::format("{} {} of tiles need {} latent cells, there are {}", axis.count,
                                 axis.name, axis.count + overlap, axis.length));
  }
  if (faults.empty()) return;
  fail(ErrorKind::config,
       fmt::format("tiles must be larger than their overlap ({} latent cells): {}; what fits: {}",
                   overlap, fmt::join(faults, "; "), what_would_fit(size, counts, overlap)));
}

// Weights of the tiles of one axis, each [its size]. Where more than two tiles share a cell the
// trapezoids do not add up to 1 (the reference leaves it there), so they are divided by their sum.
std::vector<at::Tensor> axis_weights(const std::vector<Interval>& intervals, int64_t length) {
  const at::Tensor sum = at::zeros({length}, at::kDouble);
  std::vector<at::Tensor> weights;
  for (const Interval& i : intervals) {
    weights.push_back(
        diffusion::trapezoid_mask(i.size(), i.left_ramp, i.right_ramp).to(at::kDouble));
    sum.slice(0, i.start, i.end).add_(weights.back());
  }
  for (size_t i = 0; i < intervals.size(); ++i)
    weights[i].div_(sum.slice(0, intervals[i].start, intervals[i].end));
  return weights;
}

// Indices of the tile's cells in the token order of the clip: columns fast, frames slow.
at::Tensor clip_token_indices(const LatentTile& tile, const VideoLatentSize& size) {
  return at::arange(size.num_tokens(), at::kLong)
      .view({size.frames, size.height, size.width})
      .slice(0, tile.frames.start, tile.frames.end)
      .slice(1, tile.rows.start, tile.rows.end)
      .slice(2, tile.columns.start, tile.columns.end)
      .reshape({-1});
}

// What a tile's own tokens span: [3] lower and upper bounds.
struct Extent {
  at::Tensor start;
  at::Tensor end;
};
Extent extent_of(const at::Tensor& positions, const at::Tensor& indices) {
  const at::Tensor own = positions[0].index_select(1, indices);  // [3, K, 2]
  return {own.select(2, 0).amin(1), own.select(2, 1).amax(1)};
}

// Which conditioning tokens, given as positions [3, M, 2], a tile keeps: bool [M].
at::Tensor sees(const Extent& tile, const at::Tensor& conditioning) {
  const at::Tensor start = conditioning.select(2, 0);  // [3, M]
  const at::Tensor end = conditioning.select(2, 1);
  const at::Tensor overlaps =
      start.lt(tile.end.unsqueeze(1)).logical_and(end.gt(tile.start.unsqueeze(1))).all(0);
  return overlaps.logical_or(start[0].lt(0));
}

}  // namespace

TileCounts balanced_tile_counts(int64_t world_size) {
  const auto [small, large] = diffusion::balanced_tile_split(world_size);
  return {.frames = 1, .rows = small, .columns = large};
}

std::string TileGrid::describe() const {
  if (tiles.size() == 1) return "1 tile, the whole clip";
  const LatentTile& first = tiles.front();  // the first ones take the remainder of a split
  const bool cuts_time = counts.frames > 1;
  return fmt::format(
      "{} tiles ({}{} rows x {} columns) of up to {}{} x {} latent cells, overlap {}", tiles.size(),
      cuts_time ? fmt::format("{} frames x ", counts.frames) : "", counts.rows, counts.columns,
      cuts_time ? fmt::format("{} x ", first.frames.size()) : "", first.rows.size(),
      first.columns.size(), overlap);
}

TileGrid make_tile_grid(const VideoLatentSize& size, const TileCounts& counts, int64_t overlap) {
  check_fit(size, counts, overlap);
  // The frame axis is cut like the others: nothing is decoded here, so causality plays no part.
  const auto frames = diffusion::split_by_count(size.frames, counts.frames, overlap);
  const auto rows = diffusion::split_by_count(size.height, counts.rows, overlap);
  const auto columns = diffusion::split_by_count(size.width, counts.columns, overlap);
  const auto frame_weights = axis_weights(frames, size.frames);
  const auto row_weights = axis_weights(rows, size.height);
  const auto column_weights = axis_weights(columns, size.width);

  TileGrid grid{size, counts, overlap, {}};
  for (size_t f = 0; f < frames.size(); ++f) {
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < columns.size(); ++c) {
        const at::Tensor blend =
            frame_weights[f].view({-1, 1, 1}) * row_weights[r].view({-1, 1}) * column_weights[c];
        grid.tiles.push_back({frames[f], rows[r], columns[c], blend.to(at::kFloat)});
      }
    }
  }
  return grid;
}

void check_first_sigma(double first_sigma, double max_first_sigma, bool has_reference) {
  if (has_reference || first_sigma <= max_first_sigma) return;
  fail(ErrorKind::config,
       fmt::format("the tiled stage starts at sigma {}, above max_first_sigma ({}): tiles would "
                   "drift apart; start lower, or add an image with a negative frame, which all "
                   "tiles see",
                   first_sigma, max_first_sigma));
}

std::vector<TileTokens> assign_tokens(const TileGrid& grid, const at::Tensor& positions,
                                      TilePositions mode) {
  const int64_t num_clip = grid.size.num_tokens();
  FLOTILLA_ASSERT(positions.dim() == 4 && positions.size(0) == 1 && positions.size(1) == 3);
  FLOTILLA_ASSERT(positions.size(2) >= num_clip);
  const at::Tensor conditioning = positions[0].slice(1, num_clip);  // [3, M, 2]

  std::vector<at::Tensor> own;      // tokens of the clip, a tile
  std::vector<at::Tensor> starts;   // [3] a tile
  std::vector<at::Tensor> is_kept;  // [M] a tile
  for (const LatentTile& tile : grid.tiles) {
    own.push_back(clip_token_indices(tile, grid.size).to(positions.device()));
    const Extent extent = extent_of(positions, own.back());
    starts.push_back(extent.start);
    is_kept.push_back(sees(extent, conditioning));
  }
  const at::Tensor num_keepers = at::stack(is_kept).sum(0);  // [M]

  std::vector<TileTokens> assigned;
  for (size_t i = 0; i < grid.tiles.size(); ++i) {
    const at::Tensor kept = is_kept[i].nonzero().squeeze(1);  // indices into the M
    TileTokens tokens;
    tokens.num_clip_tokens = own[i].size(0);
    tokens.keep = at::cat({own[i], kept + num_clip});
    const at::Tensor blend = grid.tiles[i].blend.reshape({-1}).to(positions.device());
    tokens.weights =
        at::cat({blend, num_keepers.index_select(0, kept).to(at::kFloat).reciprocal()});
    tokens.positions = positions.index_select(2, tokens.keep);  // [1, 3, K, 2]
    if (mode == TilePositions::normalized)
      tokens.positions = tokens.positions - starts[i].view({1, 3, 1, 1});
    assigned.push_back(std::move(tokens));
  }
  return assigned;
}

}  // namespace flotilla::parallel
