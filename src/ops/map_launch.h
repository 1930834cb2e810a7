// The kernels of feature_map.h on tensors: checks, output allocation, the current stream. Only in
// CUDA builds.
#pragma once

#ifdef FLOTILLA_CUDA

#include "ops/feature_map.h"

namespace flotilla::ops::cuda {

// Of a GPU, float32 or bfloat16, dense, channels innermost.
bool takes_map(const at::Tensor& x);

// Each does nothing, and says so by false or an undefined tensor, where its kernel does not take
// the tensors.
bool write_map(const MapSum& map, const MapOutputs& outputs);
at::Tensor unfold_channels(const MapSum& wide, const at::Tensor& skip, const Unfold& unfold);
// [B, F, H*p, W*p, C]; `frames`: float32 in [0, 1], else in the patches' type.
at::Tensor unpatchify(const MapSum& patches, int64_t patch_size, bool frames);
at::Tensor frame_bytes(const at::Tensor& frames);

}  // namespace flotilla::ops::cuda

#endif
