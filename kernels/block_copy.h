// Runs of bytes with two strides: the unit in which the ranks' exchanges are described. Numbers
// only, so the host's exchange uses it in builds without CUDA as well.
#pragma once

#include <cstdint>

namespace flotilla::kernels {

// Where run (batch, row) begins, in bytes.
struct BlockPlace {
  int64_t offset = 0;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;

  constexpr int64_t at(int64_t batch, int64_t row) const {
    return offset + batch * batch_stride + row * row_stride;
  }
};

// [batches, rows] runs of row_bytes.
struct BlockCopy {
  int64_t batches = 0;
  int64_t rows = 0;
  int64_t row_bytes = 0;
  BlockPlace from;
  BlockPlace to;
};

}  // namespace flotilla::kernels
