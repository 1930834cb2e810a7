#include "diffusion/tiling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace flotilla::diffusion {
namespace {

std::vector<Interval> whole_axis(int64_t length) { return {Interval{0, length, 0, 0}}; }

std::vector<Interval> shift_for_causality(std::vector<Interval> intervals) {
  for (size_t i = 1; i < intervals.size(); ++i) {
    intervals[i].start -= 1;
    intervals[i].left_ramp += 1;
  }
  return intervals;
}

void check_size_axis(const AxisTiling& tiling, std::string_view name, int64_t scale) {
  if (tiling.value % scale != 0 || tiling.value < 2 * scale) {
    const int64_t nearest = std::max<int64_t>(2, (tiling.value + scale / 2) / scale) * scale;
    fail(ErrorKind::config,
         fmt::format("tiles of {} along {} do not fit: the size must be a multiple of {} and at "
                     "least {}; use {}",
                     tiling.value, name, scale, 2 * scale, nearest));
  }
  if (tiling.overlap % scale != 0 || tiling.overlap < 0 || tiling.overlap >= tiling.value) {
    fail(ErrorKind::config, fmt::format("a tile overlap of {} along {} does not fit: it must be a "
                                        "multiple of {} from 0 to {}",
                                        tiling.overlap, name, scale, tiling.value - scale));
  }
}

// One axis of default_tiling(): the long side's tile, scaled to this axis in latent cells.
AxisTiling proportional_tile(int64_t axis, int64_t long_side, int64_t scale, int64_t size,
                             int64_t overlap) {
  const double cells =
      static_cast<double>((size / scale) * (axis / scale)) / static_cast<double>(long_side / scale);
  const int64_t at_least = std::max<int64_t>(2, overlap / scale + 1);
  // nearbyint rounds halves to even, as the reference does.
  const int64_t tile = std::max(at_least, static_cast<int64_t>(std::nearbyint(cells)));
  return AxisTiling::of_size(std::max(tile * scale, std::max(2 * scale, overlap + scale)), overlap);
}

}  // namespace

std::vector<Interval> split_by_count(int64_t length, int64_t count, int64_t overlap) {
  if (count < 1 || overlap < 0) {
    fail(ErrorKind::config,
         fmt::format("cannot split an axis into {} tiles with an overlap of {}", count, overlap));
  }
  if (count == 1) return whole_axis(length);
  // A tile must be larger than the overlap, or neighbours but one would meet.
  if (length < count + overlap) {
    const std::string hint =
        length >= count
            ? fmt::format("use an overlap of at most {} or fewer tiles", length - count)
            : fmt::format("use at most {} tiles", std::max<int64_t>(1, length - overlap));
    fail(ErrorKind::config,
         fmt::format("{} tiles with an overlap of {} need at least {} latent cells along the axis, "
                     "which has {}; {}",
                     count, overlap, count + overlap, length, hint));
  }
  const int64_t total = length + overlap * (count - 1);
  const int64_t size = total / count;
  const int64_t remainder = total % count;
  std::vector<Interval> intervals;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t start = i * (size - overlap) + std::min(i, remainder);
    intervals.push_back({start, start + size + (i < remainder ? 1 : 0), i > 0 ? overlap : 0,
                         i + 1 < count ? overlap : 0});
  }
  return intervals;
}

std::vector<Interval> split_by_size(int64_t length, int64_t size, int64_t overlap) {
  if (size < 1 || overlap < 0 || overlap >= size) {
    fail(ErrorKind::config,
         fmt::format("cannot split an axis into tiles of {} cells with an overlap of {}; the "
                     "overlap must be less than the size",
                     size, overlap));
  }
  if (length <= size) return whole_axis(length);
  const int64_t stride = size - overlap;
  const int64_t count = (length - overlap + stride - 1) / stride;
  std::vector<Interval> intervals;
  for (int64_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    intervals.push_back(
        {i * stride, last ? length : i * stride + size, i > 0 ? overlap : 0, last ? 0 : overlap});
  }
  return intervals;
}

std::vector<Interval> split_by_count_causal(int64_t length, int64_t count, int64_t overlap) {
  return shift_for_causality(split_by_count(length, count, overlap));
}

std::vector<Interval> split_by_size_causal(int64_t length, int64_t size, int64_t overlap) {
  return shift_for_causality(split_by_size(length, size, overlap));
}

std::pair<int64_t, int64_t> balanced_tile_split(int64_t count) {
  if (count < 1) fail(ErrorKind::config, fmt::format("a grid of {} tiles does not exist", count));
  int64_t small = 1;
  for (int64_t divisor = 1; divisor * divisor <= count; ++divisor) {
    if (count % divisor == 0) small = divisor;
  }
  return {small, count / small};
}

at::Tensor trapezoid_mask(int64_t length, int64_t left_ramp, int64_t right_ramp,
                          RampStart left_start) {
  if (length < 1) fail(ErrorKind::config, fmt::format("a tile of {} cells has no mask", length));
  const int64_t left = std::clamp<int64_t>(left_ramp, 0, length);
  const int64_t right = std::clamp<int64_t>(right_ramp, 0, length);
  at::Tensor mask = at::ones({length}, at::kFloat);
  if (left > 0) {
    const int64_t skip = left_start == RampStart::zero ? 0 : 1;
    mask.narrow(0, 0, left).mul_(at::linspace(0.0, 1.0, left + 1 + skip).narrow(0, skip, left));
  }
  if (right > 0) {
    const at::Tensor fall = at::linspace(1.0, 0.0, right + 2).narrow(0, 1, right);
    mask.narrow(0, length - right, right).mul_(fall);
  }
  return mask;
}

OutputSpan map_spatial(const Interval& interval, int64_t scale) {
  OutputSpan span{interval.start * scale, interval.end * scale, {}};
  span.mask = trapezoid_mask(span.size(), interval.left_ramp * scale, interval.right_ramp * scale);
  return span;
}

OutputSpan map_temporal(const Interval& interval, int64_t scale) {
  OutputSpan span{interval.start * scale, 1 + (interval.end - 1) * scale, {}};
  const int64_t left = interval.left_ramp == 0 ? 0 : 1 + (interval.left_ramp - 1) * scale;
  span.mask = trapezoid_mask(span.size(), left, interval.right_ramp * scale, RampStart::zero);
  return span;
}

std::vector<Interval> split_axis(const AxisTiling& tiling, std::string_view name, AxisKind kind,
                                 int64_t length, int64_t scale) {
  return with_context(fmt::format("tiling along {}", name), [&] {
    const bool causal = kind == AxisKind::time;
    switch (tiling.by) {
      case AxisTiling::By::whole:
        break;
      case AxisTiling::By::count:
        return causal ? split_by_count_causal(length, tiling.value, tiling.overlap)
                      : split_by_count(length, tiling.value, tiling.overlap);
      case AxisTiling::By::size: {
        check_size_axis(tiling, name, scale);
        const int64_t size = tiling.value / scale;
        const int64_t overlap = tiling.overlap / scale;
        return causal ? split_by_size_causal(length, size, overlap)
                      : split_by_size(length, size, overlap);
      }
    }
    return whole_axis(length);
  });
}

VideoTiling default_tiling(int64_t height, int64_t width, int64_t spatial_scale) {
  constexpr int64_t kFrames = 80, kFrameOverlap = 24, kLongSide = 768, kOverlap = 64;
  const int64_t long_side = std::max(height, width);
  return {.frames = AxisTiling::of_size(kFrames, kFrameOverlap),
          .height = proportional_tile(height, long_side, spatial_scale, kLongSide, kOverlap),
          .width = proportional_tile(width, long_side, spatial_scale, kLongSide, kOverlap)};
}

int64_t num_temporal_batches(int64_t num_frames, const AxisTiling& frames) {
  if (frames.by == AxisTiling::By::whole) return 1;
  if (frames.by == AxisTiling::By::count) return std::max<int64_t>(1, frames.value);
  const int64_t stride = frames.value - frames.overlap;
  return (num_frames - 1 + stride - 1) / stride;
}

}  // namespace flotilla::diffusion
