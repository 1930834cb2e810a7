// Which tiles a decode is cut into: latent intervals, the pixels they give, and weights that sum to
// one. A plan depends on sizes only, so every rank and the dry run derive the same one.
// Next: frame_blender.h.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "diffusion/latent_size.h"
#include "diffusion/tiling.h"
#include "vae/config.h"

namespace flotilla::vae {

struct TileSpan {
  diffusion::Interval latent;
  diffusion::OutputSpan output;
};
// Frames, rows and columns of one tile; the spans belong to the plan.
struct Tile {
  const TileSpan& frames;
  const TileSpan& rows;
  const TileSpan& columns;
};

struct TilePlan {
  std::vector<TileSpan> frames;
  std::vector<TileSpan> rows;
  std::vector<TileSpan> columns;

  int64_t num_tiles() const;
  bool tiled() const { return num_tiles() > 1; }
  // Tiles in order: time slowest, columns fastest.
  Tile tile(int64_t tile_idx) const;
  // The part of latent [1, C, F, H, W] that a tile decodes.
  at::Tensor tile_of(const at::Tensor& latent, int64_t tile_idx) const;
  bool fits(const at::Tensor& latent) const;
  // Frames of each temporal batch, one a temporal tile, in time order. Some can be 0: a causal tile
  // starts one latent earlier and may cover all of the tile before it.
  std::vector<int64_t> batch_frames() const;
  int64_t num_frames() const { return frames.back().output.end; }
  int64_t height() const { return rows.back().output.end; }
  int64_t width() const { return columns.back().output.end; }
  // "not tiled", or "12 tiles: 3 x 2 x 2 (frames x height x width), at most 80 x 768 x 512".
  std::string describe() const;
};

// Errors (ErrorKind::config): those of diffusion::split_axis().
TilePlan plan_tiles(const diffusion::VideoTiling& tiling, const diffusion::VideoLatentSize& latent,
                    const diffusion::ScaleFactors& scale);

// Bytes that decoding one tile of this size needs at its peak: activations, frames and an allowance
// for the convolutions' scratch; weights not counted. `element_bytes`: 4 or 2.
int64_t forecast_decode_bytes(const DecoderConfig& config, const diffusion::VideoLatentSize& latent,
                              int64_t element_bytes);
// The same for a whole plan: its largest tile and the frames that are blended.
int64_t forecast_decode_bytes(const DecoderConfig& config, const TilePlan& plan,
                              int64_t element_bytes);

// The part of a device's memory, one in so many, that `auto` lets a decode fill.
inline constexpr int64_t kDecodeMemoryShare = 4;
// `auto`: the whole clip when its forecast fits into `available_bytes`, else the reference's tiles.
diffusion::VideoTiling automatic_tiling(const DecoderConfig& config,
                                        const diffusion::VideoLatentSize& latent,
                                        int64_t element_bytes, int64_t available_bytes);

}  // namespace flotilla::vae
