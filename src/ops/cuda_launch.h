// The kernels of kernels/ on tensors: checks, output allocation, the current stream. Only in CUDA
// builds.
#pragma once

#ifdef FLOTILLA_CUDA

#include <ATen/core/Tensor.h>

#include "ops/norm.h"

namespace flotilla::ops::cuda {

at::Tensor rms_norm_modulate(const at::Tensor& x, double eps, const TokenModulation& modulation);

}  // namespace flotilla::ops::cuda

#endif
