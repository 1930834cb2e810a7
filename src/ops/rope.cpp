#include "ops/rope.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace flotilla::ops {
namespace {

at::Tensor grid_float64(double theta, int64_t count) {
  at::Tensor grid = at::empty({count}, at::kFloat);
  const double step = count > 1 ? 1.0 / static_cast<double>(count - 1) : 0.0;
  float* out = grid.data_ptr<float>();
  for (int64_t n = 0; n < count; ++n) {
    // The last exponent is 1 exactly, whatever (count - 1) * step rounds to.
    const double exponent = count > 1 && n == count - 1 ? 1.0 : static_cast<double>(n) * step;
    out[n] = static_cast<float>(std::pow(theta, exponent) * std::numbers::pi / 2.0);
  }
  return grid;
}

at::Tensor grid_float32(double theta, int64_t count) {
  const at::Tensor exponents = at::linspace(0.0, 1.0, count, at::kFloat);
  return at::pow(theta, exponents) * std::numbers::pi / 2.0;
}

// [B, axes, T(, 2)] -> angles [B, T, N * axes], the axis fastest.
at::Tensor rope_angles(const at::Tensor& positions, const RopeSpec& spec) {
  const at::Tensor middle =
      positions.dim() == 4 ? (positions.select(-1, 0) + positions.select(-1, 1)) / 2.0 : positions;
  std::vector<at::Tensor> fractions;
  for (int64_t axis = 0; axis < middle.size(1); ++axis) {
    fractions.push_back(middle.select(1, axis) /
                        static_cast<double>(spec.max_pos[static_cast<size_t>(axis)]));
  }
  const at::Tensor fraction = at::stack(fractions, -1);  // [B, T, axes]
  const at::Tensor grid = rope_frequency_grid(spec).to(fraction.device());
  const at::Tensor angles = grid * (fraction.unsqueeze(-1) * 2 - 1);  // [B, T, axes, N]
  return angles.transpose(-1, -2).flatten(2);
}

at::Tensor pad_front(const at::Tensor& values, int64_t pads, double with) {
  if (pads == 0) return values;
  return at::cat(
      {at::full_like(values.narrow(2, 0, 1), with).expand({values.size(0), values.size(1), pads}),
       values},
      2);
}

}  // namespace

at::Tensor rope_frequency_grid(const RopeSpec& spec) {
  const int64_t count = spec.dim / (2 * static_cast<int64_t>(spec.max_pos.size()));
  return spec.double_frequencies ? grid_float64(spec.theta, count)
                                 : grid_float32(spec.theta, count);
}

RopeTable make_rope_table(const at::Tensor& positions, const RopeSpec& spec, at::ScalarType dtype) {
  FLOTILLA_ASSERT(positions.size(1) == static_cast<int64_t>(spec.max_pos.size()));
  const at::Tensor angles = rope_angles(positions, spec);
  at::Tensor cos = angles.cos();
  at::Tensor sin = angles.sin();
  if (spec.type == RopeType::split) {
    const int64_t pads = spec.dim / 2 - angles.size(-1);
    const auto to_heads = [&spec](const at::Tensor& values) {  // [B, T, H*D/2] -> [B, H, T, D/2]
      return values.unflatten(-1, {spec.heads, -1}).transpose(1, 2);
    };
    cos = to_heads(pad_front(cos, pads, 1.0));
    sin = to_heads(pad_front(sin, pads, 0.0));
  } else {
    const int64_t pads = spec.dim - 2 * angles.size(-1);
    cos = pad_front(cos.repeat_interleave(2, -1), pads, 1.0);
    sin = pad_front(sin.repeat_interleave(2, -1), pads, 0.0);
  }
  return {cos.to(dtype).contiguous(), sin.to(dtype).contiguous(), spec.type};
}

at::Tensor rotate_heads(const at::Tensor& x, int64_t heads, const RopeTable& table) {
  const auto to_heads = [heads](const at::Tensor& values) {  // [B, T, H*D] -> [B, H, T, D]
    return values.unflatten(-1, {heads, -1}).transpose(1, 2);
  };
  if (!table.defined()) return to_heads(x);
  if (table.type == RopeType::interleaved) {
    const at::Tensor pairs = x.unflatten(-1, {-1, 2});
    const at::Tensor turned =
        at::stack({-pairs.select(-1, 1), pairs.select(-1, 0)}, -1).flatten(-2);
    return to_heads(x * table.cos + turned * table.sin);
  }
  const at::Tensor split = to_heads(x);
  const int64_t half = split.size(-1) / 2;
  const at::Tensor first = split.narrow(-1, 0, half);
  const at::Tensor second = split.narrow(-1, half, half);
  return at::cat({at::addcmul(first * table.cos, second, table.sin, -1),
                  at::addcmul(second * table.cos, first, table.sin)},
                 -1);
}

}  // namespace flotilla::ops
