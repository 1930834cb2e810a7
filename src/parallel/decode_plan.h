// How a decode is spread over ranks: a grid of overlapping tiles, each decoded by one rank, which
// may cut its tile once more to save memory. Sizes alone decide who decodes what and in which
// order, never timing, so all ranks, a dry run, and every number of ranks come to the same pixels.
// Next: distributed_decoder.h, which runs it.
// Source of the grid: ltx_core/multigpu/vae/distributed_decoder.py of the LTX-2 reference.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "diffusion/latent_size.h"
#include "diffusion/tiling.h"
#include "parallel/tile_grid.h"
#include "vae/tile_plan.h"

namespace flotilla::parallel {

struct DecoderGrid {
  TileCounts counts;
  std::array<int64_t, 3> overlap = {4, 4, 4};  // latent cells: frames, rows, columns
};

// `auto`: a tile for each rank, as square a grid as can be, the smaller factor on the height. Where
// tiles would not be larger than the overlap: the grid of at most `world_size` tiles whose largest
// tile is smallest, which can be the whole clip. Time is not cut.
TileCounts automatic_decoder_counts(const diffusion::VideoLatentSize& size,
                                    const std::array<int64_t, 3>& overlap, int64_t world_size);

// The tiles over the ranks. Errors (ErrorKind::config): n tiles need n + overlap cells.
vae::TilePlan plan_decoder_grid(const DecoderGrid& grid, const diffusion::VideoLatentSize& size,
                                const diffusion::ScaleFactors& scale);
// Sides of the largest tile, in latent cells; batch and channels as in `size`.
diffusion::VideoLatentSize largest_tile(const vae::TilePlan& grid,
                                        const diffusion::VideoLatentSize& size);

// A tile of the grid and the rank that decodes it.
struct TileShare {
  int64_t tile_idx = 0;
  int rank = 0;
  bool operator==(const TileShare&) const = default;
};
// One list a temporal tile, in time order; inside it the largest tile comes first, and each goes to
// the rank with the least to do so far (by latent cells; the lowest of equals).
std::vector<std::vector<TileShare>> deal_tiles(const vae::TilePlan& grid, int64_t world_size);

// What the ranks decode, and the pieces in which it is blended.
struct DecodePlan {
  vae::TilePlan grid;                // over the ranks
  std::vector<vae::TilePlan> tiles;  // inside a rank, one for each tile of the grid
  // Rows and columns of the grid. Frames: where the grid cuts time, its temporal tiles; else the
  // temporal batches that each tile's own plan gives, cut into runs of ceil(frames / world_size)
  // frames. Those do not overlap, and all tiles have the same ones.
  vae::TilePlan pieces;

  // Of all ranks: the grid's, or the parts that they are cut into.
  int64_t num_tiles() const;
  int64_t pieces_per_tile() const { return pieces.num_tiles() / grid.num_tiles(); }
  bool fits(const at::Tensor& latent) const { return grid.fits(latent); }
  // "2 tiles over 2 ranks: ...; inside a rank not tiled". One tile: "not tiled".
  std::string describe(int64_t world_size) const;
};

// `inside`: tiling of each tile of the grid. Errors (ErrorKind::config): the grid and `inside` both
// cut time, which a causal decoder cannot blend; those of vae::plan_tiles().
DecodePlan plan_decode(vae::TilePlan grid, const diffusion::VideoTiling& inside,
                       const diffusion::ScaleFactors& scale, int64_t world_size);

}  // namespace flotilla::parallel
