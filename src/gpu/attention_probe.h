// Which attention kernel Torch takes, asked and tried: libraries have shipped kernels that are
// wrong on one card or at one shape, and a wrong one shows in the clip only.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace flotilla::gpu {

struct AttentionProbe {
  std::string kernel;       // "cudnn", "flash", "efficient" or "math"
  double difference = 0.0;  // largest one from the plain path in float32, of values of about 1
};

// A small attention of `heads` heads of size `head_dim` in `dtype` on `device`, as the
// self-attention of a job calls it, under the choice of choose_attention(). Errors
// (ErrorKind::machine): the result is further from the plain path than rounding explains.
AttentionProbe probe_attention(at::Device device, at::ScalarType dtype, int64_t heads,
                               int64_t head_dim);

}  // namespace flotilla::gpu
