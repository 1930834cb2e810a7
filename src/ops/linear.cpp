#include "ops/linear.h"

#include <ATen/ATen.h>

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
    at::Tensor block = rows.narrow(0, begin, size);
    if (size < kRowBlock) block = at::constant_pad_nd(block, {0, 0, 0, kRowBlock - size});
    out.narrow(0, begin, size)
        .copy_(at::linear(block.contiguous(), weight, bias).narrow(0, 0, size));
  }
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return out.view(shape);
}

}  // namespace

FixedRowBlocks::FixedRowBlocks() : before_(fixed_row_blocks) { fixed_row_blocks = true; }
FixedRowBlocks::~FixedRowBlocks() { fixed_row_blocks = before_; }

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const std::optional<at::Tensor> offset = bias.defined() ? std::optional(bias) : std::nullopt;
  return fixed_row_blocks ? linear_in_blocks(x, weight, offset) : at::linear(x, weight, offset);
}

}  // namespace flotilla::ops
