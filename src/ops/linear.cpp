#include "ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace flotilla::ops {
namespace {

thread_local bool fixed_row_blocks = false;

at::Tensor linear_in_blocks(const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const int64_t count = rows.size(0);
  at::Tensor out = at::empty({count, weight.size(0)}, x.options());
  for (int64_t begin = 0; begin < count; begin += kRowBlock) {
    const int64_t size = std::min(kRowBlock, count - begin);
    const at::Tensor block = row_block(rows, 0, begin, size);
    out.narrow(0, begin, size).copy_(at::linear(block, weight, bias).narrow(0, 0, size));
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
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

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const std::optional<at::Tensor> offset = bias.defined() ? std::optional(bias) : std::nullopt;
  return fixed_row_blocks ? linear_in_blocks(x, weight, offset) : at::linear(x, weight, offset);
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
