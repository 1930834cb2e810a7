// Decodes a clip on several ranks: each decodes whole tiles of the grid, the driver blends them and
// hands on the frames in time order. Equal in bytes to one rank that decodes the same grid. Each
// tile is clamped to [0, 1] before it is blended, as in the reference; a decode of one tile is
// VideoDecoder::decode_frames().
//
// Pieces (decode_plan.h) travel as float32 [F, H, W, 3], 12 bytes a pixel, since a blend of rounded
// bytes would band; the order of all messages follows from the plan. A rank offers a piece, waits
// until the driver takes it and goes on with the next, while the driver takes the others' and
// blends. So a rank holds at most one temporal batch of each of its tiles, and the driver at most
// one run of frames of all tiles beside the frames that it blends.
//
// A rank that fails says so in place of its piece; the driver, when it fails or hears of a failure,
// lets every rank finish the piece at work and stops it. So all come back, and an agreement point
// can report the error. Only a rank that is gone ends the job (comm/communicator.h).
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "comm/communicator.h"
#include "parallel/decode_plan.h"
#include "vae/decoder.h"

namespace flotilla::parallel {

class DistributedDecoder {
 public:
  // `ranks`: null when this process is alone. Both must outlive this object.
  explicit DistributedDecoder(const DecodePlan& plan, comm::Communicator* ranks = nullptr);

  // Whether this rank decodes anything; another one needs no decoder.
  bool has_tiles() const;

  // Collective. `decoder`: null on ranks without tiles. latent: [1, C, F, H, W] on the decoder's
  // device, alike on all ranks. On the driver `on_frames` gets all frames, and `on_tile` counts the
  // tiles of all ranks; elsewhere `on_frames` is not called and `on_tile` counts this rank's.
  // Errors: those of VideoDecoder::decode_frames() and of the callbacks, thrown on the rank where
  // they occur; the others then return early, so bring it to an agreement point.
  void decode(const vae::VideoDecoder* decoder, const at::Tensor& latent,
              const vae::FrameBatchCallback& on_frames,
              const vae::TileCallback& on_tile = {}) const;

 private:
  const DecodePlan& plan_;
  comm::Communicator* ranks_;
  std::vector<std::vector<TileShare>> batches_;  // one a temporal tile of the grid
};

}  // namespace flotilla::parallel
