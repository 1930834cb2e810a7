// The video VAE's decoder: a normalised latent to pixels, whole or tile by tile.
// Frames leave as temporal batches in time order, so that a clip tiled in time is never held in
// pixels as a whole. Source: ltx_core/model/video_vae/conv_video_decoder.py.
// Next: tile_plan.h (which tiles), frame_blender.h (how they are put together).
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <vector>

#include "loader/weight_arena.h"
#include "vae/blocks.h"
#include "vae/config.h"
#include "vae/frame_blender.h"
#include "vae/statistics.h"
#include "vae/tile_plan.h"

namespace flotilla::vae {

struct DecoderWeights {
  Conv conv_in;
  std::vector<Block> blocks;
  Conv conv_out;
  LatentStatistics statistics;
};
// `binder`: the scope that holds "decoder." and "per_channel_statistics.".
DecoderWeights bind_decoder(const DecoderConfig& config, loader::WeightBinder& binder);

// frames: [F, H, W, 3] float32 in [0, 1], contiguous, on the decoder's device. Never empty.
using FrameBatchCallback = std::function<void(const at::Tensor& frames)>;
// Called after each tile: `done` of `total`. May throw to stop the decode.
using TileCallback = std::function<void(int64_t done, int64_t total)>;

// Frames in [0, 1] as uint8: round(255 * x), halves to even.
at::Tensor to_uint8(const at::Tensor& frames);
// Decoder output about [-1, 1] to [0, 1], clamped; in place where `pixels` owns its memory.
at::Tensor to_unit_range(at::Tensor pixels);

class VideoDecoder {
 public:
  // As VideoEncoder::from_checkpoint. A diffusion decoder is refused by its class name.
  static VideoDecoder from_checkpoint(std::shared_ptr<const loader::Checkpoint> checkpoint,
                                      at::ScalarType dtype, at::Device device,
                                      const loader::LoadArena& load = loader::load_alone);

  // latent: [B, C, F, H, W], normalised -> raw pixels about [-1, 1], [B, 3, 1 + (F-1)*time,
  // H*height, W*width], channels innermost in memory, in the weights' dtype.
  // Errors (ErrorKind::config): wrong channels, a side of zero; one cell a side with reflection.
  at::Tensor decode(const at::Tensor& latent) const;
  // The same before channels become pixels, [B, 3*patch*patch, F, H, W], and the bias beside it.
  ops::MapSum decode_patches(const at::Tensor& latent) const;
  // latent: [1, C, F, H, W] of the plan's size; batches of plan.batch_frames() frames (empty ones
  // are left out) go to `on_frames`. One tile is decoded as a whole.
  // Errors: as decode(); ErrorKind::non_finite names the tile with NaN or infinity.
  void decode_frames(const at::Tensor& latent, const TilePlan& plan,
                     const FrameBatchCallback& on_frames, const TileCallback& on_tile = {}) const;

  const DecoderConfig& config() const { return config_; }
  const DecoderWeights& weights() const { return weights_; }
  diffusion::ScaleFactors scale() const { return config_.scale(); }
  const LatentStatistics& statistics() const { return weights_.statistics; }
  Borders borders() const { return {.space = config_.padding, .causal = config_.causal}; }
  int64_t weight_bytes() const { return arena_->bytes(); }
  // Errors (ErrorKind::config): what decode() refuses of a latent.
  void check_latent(const at::Tensor& latent) const;

 private:
  VideoDecoder(DecoderConfig config, DecoderWeights weights,
               std::shared_ptr<const loader::WeightArena> arena);

  DecoderConfig config_;
  DecoderWeights weights_;
  std::shared_ptr<const loader::WeightArena> arena_;
};

// The frames of one latent on demand, batch by batch: what decode_frames() hands to a callback, for
// callers that decode several latents in turn. Decoder and plan must outlive it.
class FrameStream {
 public:
  // As VideoDecoder::decode_frames().
  FrameStream(const VideoDecoder& decoder, at::Tensor latent, const TilePlan& plan,
              TileCallback on_tile = {});
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  // Decodes until the next batch is complete: [F, H, W, 3] float32 in [0, 1], the caller's.
  // Undefined after the last one.
  at::Tensor next();

 private:
  const VideoDecoder& decoder_;
  at::Tensor latent_;
  const TilePlan& plan_;
  TileCallback on_tile_;
  FrameBlender blender_;
  at::Tensor ready_;
  int64_t next_tile_ = 0;
};

}  // namespace flotilla::vae
