// What stands between the convolutions of the video VAE: a map, what is still to be added to it,
// and the buffers with borders that the next convolution reads. On CUDA, for float32 and bfloat16
// maps with channels innermost in memory (channels_last_3d), one kernel a function; elsewhere, and
// for sizes that a kernel does not take, the function of the same name with _aten.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace flotilla::ops {

// The map `x + update + bias`. A convolution leaves its bias and a residual layer its result to
// whoever reads the map next, which saves a pass over it each.
struct MapSum {
  at::Tensor x;       // [B, C, F, H, W]
  at::Tensor update;  // the same; undefined: none
  at::Tensor bias;    // [C]; undefined: none
};

struct MapOutputs {
  // Like x; may be x or update. Undefined: not wanted.
  at::Tensor sum;
  // [B, C, front + F + more, H + 2 * margin, W + 2 * margin], the map in the middle: its first and
  // last frame are repeated in front and behind; the margin is not written. Undefined: not wanted.
  at::Tensor buffer;
  int64_t front = 0;
  // The buffer gets silu(s / sqrt(mean over channels of s^2 + eps)), else s itself.
  bool norm_silu = false;
  double eps = 0.0;
};

// Whether convolutions may leave their bias to these functions: a GPU's map with channels
// innermost.
bool has_map_kernels(const at::Tensor& x);

void write_map(const MapSum& map, const MapOutputs& outputs);
void write_map_aten(const MapSum& map, const MapOutputs& outputs);

// Channels unfolded into space and time: [B, C*p*q*r, F, H, W] -> [B, C, F*p - dropped, H*q, W*r],
// channels innermost. In the channel index the channel is slowest and the column fastest.
// `skip` [B, Cs*p*q*r, F, H, W] or undefined: unfolded likewise and added, repeated C / Cs times.
struct Unfold {
  std::array<int64_t, 3> stride{1, 1, 1};  // p, q, r
  int64_t dropped = 0;                     // frames in front
};
at::Tensor unfold_channels(const MapSum& wide, const at::Tensor& skip, const Unfold& unfold);
at::Tensor unfold_channels_aten(const MapSum& wide, const at::Tensor& skip, const Unfold& unfold);

// Patches to pixels: [B, C*p*p, F, H, W] -> [B, C, F, H*p, W*p], channels innermost; in the channel
// index the offset in x is slower than the offset in y.
at::Tensor unpatchify(const MapSum& patches, int64_t patch_size);
at::Tensor unpatchify_aten(const MapSum& patches, int64_t patch_size);
// The same of one sample as frames: [F, H*p, W*p, C] float32, (v + 1) / 2 clamped to [0, 1].
at::Tensor unpatchify_frames(const MapSum& patches, int64_t patch_size);
at::Tensor unpatchify_frames_aten(const MapSum& patches, int64_t patch_size);

// Frames in [0, 1], float32 of any shape, to uint8: round(255 * x), halves to even.
at::Tensor frame_bytes(const at::Tensor& frames);
at::Tensor frame_bytes_aten(const at::Tensor& frames);

}  // namespace flotilla::ops
