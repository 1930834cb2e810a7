// Tiled data parallelism (TDP), the geometry: how the latent of a clip is cut into overlapping
// tiles, which tokens each tile computes, and with which weights the tiles add up to the clip.
// Everything follows from sizes and positions, so all ranks derive the same. TDP is an
// approximation for upscaling: tiles see only themselves, and drift apart where much noise is left.
// Next: tiled_velocity_model.h, which runs the transformer on the tiles.
// Source of the method: ltx_core/modality_tiling.py of the LTX-2 reference.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "diffusion/latent_size.h"
#include "diffusion/tiling.h"

namespace flotilla::parallel {

// Tiles along each axis of a latent.
struct TileCounts {
  int64_t frames = 1;
  int64_t rows = 1;
  int64_t columns = 1;

  int64_t num_tiles() const { return frames * rows * columns; }
  bool operator==(const TileCounts&) const = default;
};

constexpr int64_t kDefaultTileOverlap = 5;  // latent cells

// A tile for each rank, as square a grid as can be, the smaller factor on the height: 8 ranks make
// 2 rows of 4 columns.
TileCounts balanced_tile_counts(int64_t world_size);

struct LatentTile {
  diffusion::Interval frames;
  diffusion::Interval rows;
  diffusion::Interval columns;
  at::Tensor blend;  // float32 [frames, rows, columns], CPU; sums to 1 over the tiles of a cell

  int64_t num_tokens() const { return frames.size() * rows.size() * columns.size(); }
};

struct TileGrid {
  diffusion::VideoLatentSize size;
  TileCounts counts;
  int64_t overlap = 0;
  std::vector<LatentTile> tiles;  // columns fast, frames slow

  // "8 tiles (2 rows x 4 columns) of up to 11 x 12 latent cells, overlap 5", for plans and logs.
  std::string describe() const;
};

// The overlap is in latent cells, between neighbours on each axis that is cut. One tile is the
// whole clip. Errors (ErrorKind::config): counts below 1, a negative overlap, tiles that are not
// larger than the overlap (n tiles need n + overlap cells); the message tells what would fit.
TileGrid make_tile_grid(const diffusion::VideoLatentSize& size, const TileCounts& counts,
                        int64_t overlap = kDefaultTileOverlap);

// Refuses a stage that starts too noisy for tiles. `has_reference`: tokens before the start of the
// clip, which every tile sees, hold the tiles together. Errors (ErrorKind::config).
void check_first_sigma(double first_sigma, double max_first_sigma, bool has_reference);

// The tokens that one tile computes, of a sequence of T tokens: those of the clip first, then the
// conditioning tokens.
struct TileTokens {
  at::Tensor keep;          // int64 [K], ascending indices into the T tokens
  at::Tensor weights;       // float32 [K], what each token's result counts
  at::Tensor positions;     // [1, 3, K, 2]
  int64_t num_clip_tokens;  // the first ones of `keep`

  int64_t num_tokens() const { return keep.size(0); }
};

enum class TilePositions {
  normalized,  // moved so that the tile's own tokens start at zero on every axis
  absolute,    // as in the clip
};

// One entry a tile, on the device of `positions` [1, 3, T, 2] ([start, end) in seconds, pixels,
// pixels; the tokens of the clip first). A conditioning token goes to the tiles that it overlaps on
// all axes, one with negative time to all tiles; its weight is 1 / their number. A token that no
// tile sees (after the end of the clip, outside the picture) gets no result.
std::vector<TileTokens> assign_tokens(const TileGrid& grid, const at::Tensor& positions,
                                      TilePositions mode = TilePositions::normalized);

}  // namespace flotilla::parallel
