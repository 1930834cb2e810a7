// Rotary position embedding over several position axes (time, height, width), in the split layout
// (halves of a head are a complex pair) and the older interleaved one (neighbours are a pair).
// Formula: RoFormer (arXiv 2104.09864) with fractional positions in [-1, 1]:
//   angle[t, n, axis] = pi/2 * theta^(n / (N - 1)) * (2 * position[axis, t] / max_pos[axis] - 1).
// The frequency index n is slow, the axis fast; pads (cos 1, sin 0) stand in front, in head 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace flotilla::ops {

enum class RopeType { split, interleaved };

struct RopeSpec {
  int64_t dim = 0;    // width over all heads, H * D
  int64_t heads = 0;  // H
  double theta = 10000.0;
  std::vector<int64_t> max_pos;  // one an axis, in the unit of the positions
  RopeType type = RopeType::split;
  bool double_frequencies = false;  // the frequency grid, and only it, in float64
};

// split: cos, sin [B, H, T, D/2]; interleaved: [B, T, H*D]. Undefined: no rotation.
struct RopeTable {
  at::Tensor cos;
  at::Tensor sin;
  RopeType type = RopeType::split;

  bool defined() const { return cos.defined(); }
};

// The grid pi/2 * theta^(n / (N - 1)), float32 [N] with N = dim / (2 * axes), on the CPU.
at::Tensor rope_frequency_grid(const RopeSpec& spec);

// positions: float [B, axes, T, 2] ([start, end), of which the middle counts) or [B, axes, T].
RopeTable make_rope_table(const at::Tensor& positions, const RopeSpec& spec, at::ScalarType dtype);

// x: [B, T, H*D] -> rotated heads [B, H, T, D], the layout of attention.
at::Tensor rotate_heads(const at::Tensor& x, int64_t heads, const RopeTable& table);

}  // namespace flotilla::ops
