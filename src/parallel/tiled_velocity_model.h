// Tiled data parallelism (TDP): the velocity of a whole clip from overlapping tiles, which the
// ranks compute one by one. Tiles of a rank that have one length run as one batch. Every rank fills
// the places of its own tiles in one buffer; one sum over the ranks completes it; then each rank
// blends all tiles in their order. As every number of the buffer has one contributor, the sum is
// exact, and the result depends on the ranks only through what is batched with what.
// Geometry: tile_grid.h. x0 is taken by the caller, after the blend.
#pragma once

#include <functional>

#include "parallel/tile_grid.h"
#include "transformer/velocity_model.h"

namespace flotilla::parallel {

// Adds a contiguous tensor up over the ranks, in place, the result on all of them alike.
using SumOverRanks = std::function<void(at::Tensor&)>;

// Tile i belongs to rank i mod world_size. With more ranks than tiles the last ranks only blend.
struct TileOwner {
  int64_t rank = 0;
  int64_t world_size = 1;
  SumOverRanks sum;  // empty: this rank is alone
};

class TiledVelocityModel final : public transformer::VelocityModel {
 public:
  // `model` and `graphs` (null: none) must outlive this object; `dtype` is that of the latents.
  // positions.video has the tokens of grid.size first. Logs a warning for conditioning that no tile
  // sees.
  TiledVelocityModel(const transformer::Transformer& model, const TileGrid& grid,
                     const transformer::TokenPositions& positions, at::ScalarType dtype,
                     TileOwner owner = {}, TilePositions mode = TilePositions::normalized,
                     transformer::BlockGraphs* graphs = nullptr);

  // Audio is computed beside every tile and averaged over them: it keeps the ranks' inputs equal,
  // but each tile heard a part of the picture only, so it is not meant as an output. Without video
  // this is the plain model. Collective over the ranks where there is video.
  transformer::Velocity forward(const transformer::Modality* video,
                                const transformer::Modality* audio,
                                const transformer::Perturbations& perturbations) const override;

 private:
  // Tiles of this rank with one number of tokens, which run as one batch.
  struct Batch {
    std::vector<size_t> tiles;
    transformer::RopeTables rope;  // one sample where the tiles have equal positions, else one each
  };
  struct Results;

  void run_batch(const Batch& batch, const transformer::Modality& video,
                 const transformer::Modality* audio,
                 const transformer::Perturbations& perturbations, const Results& results) const;
  at::Tensor blend_video(const Results& results) const;  // [B, T, D]

  const transformer::Transformer& model_;
  std::vector<TileTokens> tiles_;
  std::vector<int64_t> offsets_;  // of each tile's tokens in the buffer, and their total
  int64_t num_tokens_;            // T
  transformer::RopeTables audio_rope_;
  std::vector<Batch> batches_;
  SumOverRanks sum_;
  transformer::LocalVideoTokenAttention attention_;
  transformer::BlockGraphs* graphs_;
};

}  // namespace flotilla::parallel
