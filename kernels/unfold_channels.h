// A convolution's channels unfolded into space and time (the upsampling of the video VAE):
//   out[f*p + i, h*q + j, w*r + k, c] = wide[f, h, w, c'] + bias[c'] + skip[f, h, w, s']
//   with c' = ((c*p + i)*q + j)*r + k, and s' the same of channel c % skip_channels,
// and the first `dropped` frames left out. All maps have their channels innermost. Arithmetic in
// float32, rounded once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/data_type.h"

namespace flotilla::kernels {

struct UnfoldChannelsArgs {
  const void* wide = nullptr;  // [samples, frames, height, width, channels * p*q*r]
  const void* bias = nullptr;  // [channels * p*q*r]; null: none
  const void* skip =
      nullptr;  // [samples, frames, height, width, skip_channels * p*q*r]; null: none
  int64_t skip_channels = 0;
  void* out = nullptr;  // [samples, frames*p - dropped, height*q, width*r, channels]
  int64_t samples = 0;
  int64_t frames = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;
  int stride[3] = {1, 1, 1};  // p, q, r
  int dropped = 0;
  DataType dtype = DataType::float32;
};

// Whether the kernel takes these sizes: strides (2,2,2), (1,2,2) and (2,1,1); channels and skip
// channels that are multiples of 16 bytes, as the addresses are; samples * frames up to 65535.
bool can_unfold_channels(const UnfoldChannelsArgs& args);

// Asynchronous on `stream`; capturable.
cudaError_t launch_unfold_channels(const UnfoldChannelsArgs& args, cudaStream_t stream);

}  // namespace flotilla::kernels
