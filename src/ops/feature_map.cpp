#include "ops/feature_map.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "ops/map_launch.h"

namespace flotilla::ops {
namespace {

at::Tensor total(const MapSum& map) {
  at::Tensor sum = map.x;
  if (map.bias.defined()) sum = sum + map.bias.view({1, -1, 1, 1, 1});
  if (map.update.defined()) sum = sum + map.update;
  return sum;
}

// [B, C*p*q*r, F, H, W] -> [B, F*p, H*q, W*r, C].
at::Tensor unfold_cells(const at::Tensor& x, const std::array<int64_t, 3>& s) {
  const int64_t b = x.size(0), c = x.size(1) / (s[0] * s[1] * s[2]);
  const int64_t f = x.size(2), h = x.size(3), w = x.size(4);
  return x.view({b, c, s[0], s[1], s[2], f, h, w})
      .permute({0, 5, 2, 6, 3, 7, 4, 1})
      .reshape({b, f * s[0], h * s[1], w * s[2], c});
}

}  // namespace

bool has_map_kernels(const at::Tensor& x) {
#ifdef FLOTILLA_CUDA
  return cuda::takes_map(x);
#else
  static_cast<void>(x);
  return false;
#endif
}

void write_map_aten(const MapSum& map, const MapOutputs& outputs) {
  const at::Tensor sum = total(map);
  if (outputs.sum.defined()) at::Tensor(outputs.sum).copy_(sum);
  if (!outputs.buffer.defined()) return;
  at::Tensor y = sum;
  if (outputs.norm_silu) {
    const at::Tensor rms = sum.square().mean(at::IntArrayRef{1}, true).add_(outputs.eps).sqrt_();
    y = at::silu(sum / rms);
  }
  const int64_t frames = y.size(2);
  const int64_t margin = (outputs.buffer.size(3) - y.size(3)) / 2;
  const int64_t back = outputs.buffer.size(2) - outputs.front - frames;
  const at::Tensor inner = outputs.buffer.narrow(3, margin, y.size(3)).narrow(4, margin, y.size(4));
  inner.narrow(2, outputs.front, frames).copy_(y);
  inner.narrow(2, 0, outputs.front).copy_(y.narrow(2, 0, 1));
  inner.narrow(2, outputs.front + frames, back).copy_(y.narrow(2, frames - 1, 1));
}

void write_map(const MapSum& map, const MapOutputs& outputs) {
#ifdef FLOTILLA_CUDA
  if (cuda::write_map(map, outputs)) return;
#endif
  write_map_aten(map, outputs);
}

at::Tensor unfold_channels_aten(const MapSum& wide, const at::Tensor& skip, const Unfold& unfold) {
  at::Tensor out = unfold_cells(total(wide), unfold.stride);
  if (skip.defined()) {
    // The unfolded input has fewer channels; it is repeated, all of it after itself.
    const at::Tensor narrow = unfold_cells(skip, unfold.stride);
    out.unflatten(-1, {out.size(-1) / narrow.size(-1), narrow.size(-1)}).add_(narrow.unsqueeze(-2));
  }
  return out.narrow(1, unfold.dropped, out.size(1) - unfold.dropped).permute({0, 4, 1, 2, 3});
}

at::Tensor unfold_channels(const MapSum& wide, const at::Tensor& skip, const Unfold& unfold) {
#ifdef FLOTILLA_CUDA
  if (const at::Tensor out = cuda::unfold_channels(wide, skip, unfold); out.defined()) return out;
#endif
  return unfold_channels_aten(wide, skip, unfold);
}

at::Tensor unpatchify_aten(const MapSum& patches, int64_t patch_size) {
  const at::Tensor sum = total(patches);
  const int64_t b = sum.size(0), f = sum.size(2), p = patch_size;
  const int64_t c = sum.size(1) / (p * p), h = sum.size(3), w = sum.size(4);
  return sum
      .view({b, c, p, p, f, h, w})  // b c x y f h w
      .permute({0, 4, 5, 3, 6, 2, 1})
      .reshape({b, f, h * p, w * p, c})
      .permute({0, 4, 1, 2, 3});
}

at::Tensor unpatchify(const MapSum& patches, int64_t patch_size) {
#ifdef FLOTILLA_CUDA
  const at::Tensor pixels = cuda::unpatchify(patches, patch_size, /*frames=*/false);
  if (pixels.defined()) return pixels.permute({0, 4, 1, 2, 3});
#endif
  return unpatchify_aten(patches, patch_size);
}

at::Tensor unpatchify_frames_aten(const MapSum& patches, int64_t patch_size) {
  const at::Tensor pixels = unpatchify_aten(patches, patch_size);
  at::Tensor frames = pixels[0].permute({1, 2, 3, 0}).to(at::kFloat);
  return frames.contiguous().add_(1.0).mul_(0.5).clamp_(0.0, 1.0);
}

at::Tensor unpatchify_frames(const MapSum& patches, int64_t patch_size) {
  FLOTILLA_ASSERT(patches.x.size(0) == 1);
#ifdef FLOTILLA_CUDA
  const at::Tensor frames = cuda::unpatchify(patches, patch_size, /*frames=*/true);
  if (frames.defined()) return frames[0];
#endif
  return unpatchify_frames_aten(patches, patch_size);
}

at::Tensor frame_bytes_aten(const at::Tensor& frames) {
  return (frames * 255).round_().clamp_(0, 255).to(at::kByte);
}

at::Tensor frame_bytes(const at::Tensor& frames) {
#ifdef FLOTILLA_CUDA
  if (const at::Tensor bytes = cuda::frame_bytes(frames); bytes.defined()) return bytes;
#endif
  return frame_bytes_aten(frames);
}

}  // namespace flotilla::ops
