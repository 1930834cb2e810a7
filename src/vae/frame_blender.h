// Puts decoded tiles together: weighted sum, one temporal batch after the other.
// Holds the pixels of one temporal tile and what it shares with the next, not the clip.
#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "vae/tile_plan.h"

namespace flotilla::vae {

class FrameBlender {
 public:
  // frames: float32 [F, H, W, channels], the receiver's to change. Never empty.
  using Emit = std::function<void(at::Tensor frames)>;
  // `plan` must outlive the blender.
  FrameBlender(const TilePlan& plan, Emit emit);

  // The next tile of the plan: [F, H, W, channels], any floating dtype. A batch that is complete is
  // emitted at once. The order is fixed, so equal tiles give equal bytes.
  void add(const at::Tensor& pixels);
  bool finished() const { return next_tile_ == plan_->num_tiles(); }

 private:
  void begin_batch(const at::Tensor& pixels);
  void end_batch(size_t frame_idx);

  const TilePlan* plan_;
  Emit emit_;
  at::Tensor batch_;  // [F of the temporal tile, H, W, channels]
  at::Tensor tail_;   // frames that the last batch left for the next one
  int64_t next_tile_ = 0;
};

}  // namespace flotilla::vae
