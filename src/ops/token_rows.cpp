#include "ops/token_rows.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace flotilla::ops {

TimestepTable make_timestep_table(const at::Tensor& timesteps) {
  const at::Tensor flat = timesteps.dim() == 3 ? timesteps.squeeze(-1) : timesteps;  // [B, T]
  FLOTILLA_ASSERT(flat.dim() == 2);
  const at::Tensor host = flat.to(at::kCPU, at::kFloat);
  const at::Tensor first = host.narrow(1, 0, 1);
  if (host.eq(first).all().item<bool>()) return {first.reshape({-1}).to(flat.device()), {}};
  auto [values, index] = at::_unique(host, /*sorted=*/true, /*return_inverse=*/true);
  return {values.to(flat.device()), index.to(flat.device())};
}

at::Tensor expand_rows(const at::Tensor& rows, const at::Tensor& index) {
  if (!index.defined()) return rows.unsqueeze(1);  // [B, 1, D]
  return rows.index_select(0, index.reshape({-1}))
      .view({index.size(0), index.size(1), rows.size(-1)});
}

}  // namespace flotilla::ops
