// Where a denoise loop stands, as a value: everything that the next step depends on and that the
// job does not tell. It can be stored as named tensors and read back, and goes on bit-identically.
#pragma once

#include <cstdint>
#include <string>

#include "diffusion/denoiser.h"

namespace flotilla::diffusion {

struct DenoiseState {
  std::string stage;      // "stage_1"
  int64_t step = 0;       // steps done
  at::Tensor video;       // [B, T, D] float32, conditioning tokens included; holds any dtype of the
  at::Tensor audio;       // run without loss
  at::Tensor generator;   // uint8 state of the job's noise generator
  NamedTensors sampler;   // Sampler::memory()
  NamedTensors denoiser;  // Denoiser::memory(): cached guider results
};

// CPU tensors under "stage" (uint8 text), "step" (int64 scalar), "video", "audio", "generator",
// "sampler/<name>" and "denoiser/<name>"; floating ones as float32, which bfloat16 fits in.
NamedTensors to_tensors(const DenoiseState& state);

// The inverse. The tensors come from a file: errors (ErrorKind::input) name what is missing,
// unknown, or of a wrong dtype or shape.
DenoiseState state_from_tensors(const NamedTensors& tensors);

}  // namespace flotilla::diffusion
