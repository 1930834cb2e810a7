#include "vae/frame_blender.h"

#include <utility>

#include "base/error.h"

namespace flotilla::vae {
namespace {

// The weights of one axis as a factor for [F, H, W, channels].
at::Tensor along(const at::Tensor& mask, int64_t dim, at::Device device) {
  at::DimVector shape(4, 1);
  shape[static_cast<size_t>(dim)] = -1;
  return mask.view(shape).to(device);
}

}  // namespace

FrameBlender::FrameBlender(const TilePlan& plan, Emit emit)
    : plan_(&plan), emit_(std::move(emit)) {}

void FrameBlender::add(const at::Tensor& pixels) {
  FLOTILLA_ASSERT(!finished());
  const auto tiles_per_batch = static_cast<int64_t>(plan_->rows.size() * plan_->columns.size());
  const auto frame_idx = static_cast<size_t>(next_tile_ / tiles_per_batch);
  const Tile tile = plan_->tile(next_tile_);
  FLOTILLA_ASSERT(pixels.dim() == 4 && pixels.size(0) == tile.frames.output.size() &&
                  pixels.size(1) == tile.rows.output.size() &&
                  pixels.size(2) == tile.columns.output.size());
  if (!plan_->tiled()) {
    ++next_tile_;
    emit_(pixels.to(at::kFloat).contiguous());
    return;
  }
  if (next_tile_ % tiles_per_batch == 0) begin_batch(pixels);
  const at::Device device = pixels.device();
  at::Tensor weighted = pixels * along(tile.frames.output.mask, 0, device);
  weighted.mul_(along(tile.rows.output.mask, 1, device));
  weighted.mul_(along(tile.columns.output.mask, 2, device));
  batch_.narrow(1, tile.rows.output.begin, tile.rows.output.size())
      .narrow(2, tile.columns.output.begin, tile.columns.output.size())
      .add_(weighted);
  if (++next_tile_ % tiles_per_batch == 0) end_batch(frame_idx);
}

void FrameBlender::begin_batch(const at::Tensor& pixels) {
  batch_ = at::zeros({pixels.size(0), plan_->height(), plan_->width(), pixels.size(3)},
                     pixels.options().dtype(at::kFloat));
  if (!tail_.defined()) return;
  batch_.narrow(0, 0, tail_.size(0)).copy_(tail_);
  tail_.reset();
}

// Emits the frames that no later tile adds to, and keeps the others.
void FrameBlender::end_batch(size_t frame_idx) {
  const int64_t ready = plan_->batch_frames()[frame_idx];
  const int64_t left = batch_.size(0) - ready;
  if (left > 0) tail_ = batch_.narrow(0, ready, left).clone();
  at::Tensor frames = batch_.narrow(0, 0, ready);
  batch_.reset();
  if (ready > 0) emit_(std::move(frames));
}

}  // namespace flotilla::vae
