// Tile geometry: how an axis of a latent is cut into overlapping intervals, the trapezoidal masks
// that blend the tiles, and where an interval lies in pixels and frames.
// Integers and one-dimensional masks only; who decodes or denoises a tile is not known here.
// Next: vae/tile_plan.h (a whole decode), vae/frame_blender.h (putting tiles together).
// Source of the formulas: ltx_core/tiling.py and ltx_core/model/video_vae/video_vae.py.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace flotilla::diffusion {

// Cells [start, end) of an axis. The ramps are how many cells at either side blend with a
// neighbour.
struct Interval {
  int64_t start = 0;
  int64_t end = 0;
  int64_t left_ramp = 0;
  int64_t right_ramp = 0;

  int64_t size() const { return end - start; }
  bool operator==(const Interval&) const = default;
};

// `count` intervals of nearly equal size; the first ones take the remainder. One tile is the whole
// axis, whatever the overlap. Errors (ErrorKind::config): fewer than count + overlap cells.
std::vector<Interval> split_by_count(int64_t length, int64_t count, int64_t overlap);
// Intervals of `size` cells; the last one may be shorter. An axis of `size` or less stays whole.
// Errors (ErrorKind::config): size below 1, overlap outside [0, size).
std::vector<Interval> split_by_size(int64_t length, int64_t size, int64_t overlap);
// The same for the frame axis of a causal VAE: each tile but the first starts one cell earlier,
// since the first latent of a tile decodes to one frame instead of a full group.
std::vector<Interval> split_by_count_causal(int64_t length, int64_t count, int64_t overlap);
std::vector<Interval> split_by_size_causal(int64_t length, int64_t size, int64_t overlap);

// `count` as (small, large) with small * large == count, as square as can be: 8 -> (2, 4).
std::pair<int64_t, int64_t> balanced_tile_split(int64_t count);

enum class RampStart {
  above_zero,  // left ramp of L cells: 1/(L+1) ... L/(L+1)
  zero,        // left ramp of L cells: 0/L ... (L-1)/L, for the causal first frame of a tile
};
// Weights of one tile along one axis: linear ramps, one in between. float32 on the CPU, [length].
// Ramps longer than the mask are cut to it. Errors (ErrorKind::config): length below 1.
at::Tensor trapezoid_mask(int64_t length, int64_t left_ramp, int64_t right_ramp,
                          RampStart left_start = RampStart::above_zero);

// Pixels or frames [begin, end) that a latent interval decodes to, and their weights.
struct OutputSpan {
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor mask;  // float32, CPU, [end - begin]

  int64_t size() const { return end - begin; }
};
// Rows or columns: each cell is `scale` pixels.
OutputSpan map_spatial(const Interval& interval, int64_t scale);
// Frames: the first cell is one frame, each further one `scale` frames.
OutputSpan map_temporal(const Interval& interval, int64_t scale);

// What the user asks for along one axis. Sizes are in pixels or frames, and so is the overlap
// beside a size; the overlap beside a count is in latent cells.
struct AxisTiling {
  enum class By { whole, size, count };
  By by = By::whole;
  int64_t value = 0;
  int64_t overlap = 0;

  static AxisTiling of_size(int64_t size, int64_t overlap) { return {By::size, size, overlap}; }
  static AxisTiling of_count(int64_t count, int64_t overlap) { return {By::count, count, overlap}; }
  bool operator==(const AxisTiling&) const = default;
};
struct VideoTiling {
  AxisTiling frames;
  AxisTiling height;
  AxisTiling width;
  bool operator==(const VideoTiling&) const = default;
};

enum class AxisKind { time, space };
// The latent intervals of an axis of `length` cells at `scale` pixels (or frames) a cell; `name`
// ("height") is for messages. Errors (ErrorKind::config): sizes or overlaps that are not multiples
// of `scale`, a size below two cells, and those of the splits.
std::vector<Interval> split_axis(const AxisTiling& tiling, std::string_view name, AxisKind kind,
                                 int64_t length, int64_t scale);

// The reference's own choice for a picture of this size (pixels): tiles of 80 frames, 24 shared,
// and of 768 pixels on the long side, 64 shared; the short side in proportion, rounded in latent
// cells.
VideoTiling default_tiling(int64_t height, int64_t width, int64_t spatial_scale);
// Temporal batches that tiles of `size` frames make of a clip, an upper bound for progress.
int64_t num_temporal_batches(int64_t num_frames, const AxisTiling& frames);

}  // namespace flotilla::diffusion
