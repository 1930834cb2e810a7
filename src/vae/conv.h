// The 3x3x3 convolution of the video VAE with its borders.
// Frames are repeated at the ends (two in front when causal, else one at each end), rows and
// columns are padded by zeros or by reflection. What would be a padding copy is one buffer that the
// layer before writes into: padded() makes it, convolve() reads it. All activations are [B, C, F,
// H, W] with channels innermost in memory (channels_last_3d): the norm over channels is then
// contiguous, and frames are contiguous slices.
//
// On a GPU a convolution's bias and the sum of a residual layer are not passes of their own: they
// stay beside the map (ops::MapSum) until padded() or padded_norm_silu() reads it.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <string_view>

#include "loader/weight_arena.h"
#include "ops/feature_map.h"
#include "vae/config.h"

namespace flotilla::vae {

struct Conv {
  at::Tensor weight;  // [out, in, 3, 3, 3]
  at::Tensor bias;    // [out]
};
// Takes "<name>.conv.weight" and "<name>.conv.bias".
Conv take_conv(loader::WeightBinder& binder, std::string_view name, int64_t in, int64_t out);

struct Borders {
  SpatialPadding space = SpatialPadding::zeros;
  bool causal = true;
  // Further copies of the first frame in front.
  int64_t extra_front = 0;

  int64_t front() const { return (causal ? 2 : 1) + extra_front; }
  int64_t back() const { return causal ? 0 : 1; }
  // Rows and columns that the buffer holds at each side; zeros are left to the convolution.
  int64_t margin() const { return space == SpatialPadding::reflect ? 1 : 0; }
};

// Whether the sum of a map's parts is read again; it is then left as the map's only part.
enum class Keep { nothing, sum };
// Adds up the parts of a map, in the memory of the update where there is one, else of x.
const at::Tensor& add_up(ops::MapSum& map);
// The map with its borders. Errors (ErrorKind::config): reflection of a picture of one row or
// column. With Keep::nothing the map is used up.
at::Tensor padded(ops::MapSum& map, const Borders& borders, Keep keep);
at::Tensor padded(const at::Tensor& x, const Borders& borders);
// silu(pixel_norm(x)) with its borders; pixel_norm is x / sqrt(mean over channels of x^2 + 1e-8).
at::Tensor padded_norm_silu(ops::MapSum& map, const Borders& borders, Keep keep);
at::Tensor padded_norm_silu(const at::Tensor& x, const Borders& borders);
// The frames of a buffer of padded(), from `first` on, without the rows and columns of the border.
at::Tensor frames_of(const at::Tensor& buffer, const Borders& borders, int64_t first);

// Convolves a buffer of padded(): [B, in, F + borders, H, W] -> [B, out, F', H', W'].
at::Tensor convolve(const at::Tensor& buffer, const Conv& conv, const Borders& borders,
                    const std::array<int64_t, 3>& stride = {1, 1, 1});
// The same with stride 1, `run` frames of the result at a time. convolve() does so on GPUs where a
// map has more elements than 32 bits can count, which convolution kernels there do.
at::Tensor convolve_in_runs(const at::Tensor& buffer, const Conv& conv, const Borders& borders,
                            int64_t run);
// The same with stride 1, its bias left to whoever reads the map where that saves a pass.
ops::MapSum convolve_open(const at::Tensor& buffer, const Conv& conv, const Borders& borders);

// Turns a weight around in its own memory, so that channels lie innermost, as cuDNN reads it; not
// where there are too few for maps to be laid out so.
void lay_channels_innermost(at::Tensor& weight);

}  // namespace flotilla::vae
