// Matrix products over the rows of a token tensor.
// A BLAS library chooses its kernel by the number of rows, and kernels differ in the last bits: a
// token's result depends on how many others are computed with it. With FixedRowBlocks it does not:
// rows run in blocks of 64, the last one filled with zeros, so any split of the tokens over ranks
// gives equal bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace flotilla::ops {

constexpr int64_t kRowBlock = 64;

// While one lives, linear() on this thread works in fixed blocks of rows. For `reproducible:
// world`.
class FixedRowBlocks {
 public:
  FixedRowBlocks();
  ~FixedRowBlocks();
  FixedRowBlocks(const FixedRowBlocks&) = delete;
  FixedRowBlocks& operator=(const FixedRowBlocks&) = delete;

 private:
  bool before_;
};

// x [..., in] times weight [out, in] transposed, plus bias [out] where it is defined -> [..., out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace flotilla::ops
