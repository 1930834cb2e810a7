// Values that depend on a token only through its timestep are kept as one row a distinct timestep
// and an index from tokens to rows, so AdaLN runs on a handful of rows instead of on all tokens.
#pragma once

#include <ATen/core/Tensor.h>

namespace flotilla::ops {

// Distinct timesteps of a batch of token sequences.
struct TimestepTable {
  at::Tensor values;  // float32 [U]
  at::Tensor index;   // int64 [B, T]; undefined: every sample has one timestep, and U is B (or 1)
};

// timesteps: [B, T] or [B, T, 1]. Values are sorted, so the table does not depend on token order.
// Reads the tensor on the host: call it once a step, not inside captured work.
TimestepTable make_timestep_table(const at::Tensor& timesteps);

// rows [U, D] -> values that broadcast to [B, T, D].
at::Tensor expand_rows(const at::Tensor& rows, const at::Tensor& index);

}  // namespace flotilla::ops
