#include "ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "ops/fp8_linear.h"

namespace flotilla::ops {
namespace {

thread_local bool fixed_row_blocks = false;

// The layer in the type of the computation.
LinearWeights widened(const LinearWeights& layer, at::ScalarType dtype) {
  LinearWeights wide;
  wide.weight = layer.weight.to(dtype);
  if (layer.bias.defined()) wide.bias = layer.bias.to(dtype);
  return wide;
}

at::Tensor product(const at::Tensor& x, const LinearWeights& layer) {
  if (layer.row_scales.defined()) return fp8_linear(quantise_rows(x), layer);
  return at::linear(x, layer.weight,
                    layer.bias.defined() ? std::optional(layer.bias) : std::nullopt);
}

at::Tensor linear_in_blocks(const at::Tensor& x, const LinearWeights& layer) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const int64_t count = rows.size(0);
  at::Tensor out = at::empty({count, layer.weight.size(0)}, x.options());
  for (int64_t begin = 0; begin < count; begin += kRowBlock) {
    const int64_t size = std::min(kRowBlock, count - begin);
    const at::Tensor block = row_block(rows, 0, begin, size);
    out.narrow(0, begin, size).copy_(product(block, layer).narrow(0, 0, size));
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = layer.weight.size(0);
  return out.view(shape);
}

}  // namespace

FixedRowBlocks::FixedRowBlocks() : before_(fixed_row_blocks) { fixed_row_blocks = true; }
FixedRowBlocks::~FixedRowBlocks() { fixed_row_blocks = before_; }
bool FixedRowBlocks::active() { return fixed_row_blocks; }

at::Tensor row_block(const at::Tensor& x, int64_t axis, int64_t begin, int64_t size) {
  const at::Tensor rows = x.narrow(axis, begin, size);
  if (size == kRowBlock) return rows.contiguous();
  std::vector<int64_t> missing = rows.sizes().vec();
  missing[static_cast<size_t>(axis)] = kRowBlock - size;
  return at::cat({rows, at::zeros(missing, rows.options())}, axis);
}

at::Tensor linear(const at::Tensor& x, const LinearWeights& layer) {
  const bool stored_narrow =
      layer.weight.scalar_type() == at::kFloat8_e4m3fn && !layer.row_scales.defined();
  const LinearWeights& used = stored_narrow ? widened(layer, x.scalar_type()) : layer;
  return fixed_row_blocks ? linear_in_blocks(x, used) : product(x, used);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return linear(x, LinearWeights{weight, bias, {}});
}

at::Tensor by_rows(const at::Tensor& x, at::Tensor (*function)(const at::Tensor&)) {
  if (!fixed_row_blocks) return function(x);
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  at::Tensor out = at::empty_like(rows);
  const bool inference = c10::InferenceMode::is_enabled();
  at::parallel_for(0, rows.size(0), kRowBlock, [&](int64_t begin, int64_t end) {
    const c10::InferenceMode same_mode(inference);  // threads do not inherit it
    for (int64_t i = begin; i < end; ++i) out[i].copy_(function(rows[i]));
  });
  return out.view(x.sizes());
}

}  // namespace flotilla::ops
