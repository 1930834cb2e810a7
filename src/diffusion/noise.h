// The random numbers of a job. One generator per job, seeded once, gives the noise of stage 1
// video, stage 1 audio, stage 2 video and stage 2 audio in this order; a draw covers the whole
// token tensor [B, T, D] in the dtype of the latents (a bfloat16 draw is not a rounded float32
// draw), before any padding or splitting, so that every world size sees the same noise. On a CPU
// the numbers equal those of a torch.Generator with the same seed, to the bit on AVX2 and newer.
// That generator looks at the low 32 bits of the seed only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "diffusion/latent_state.h"

namespace flotilla::diffusion {

class NoiseGenerator {
 public:
  // `device` is where the numbers are made: CPU unless the draws of a GPU are wanted.
  explicit NoiseGenerator(uint64_t seed, at::Device device = at::kCPU);
  NoiseGenerator(NoiseGenerator&&) = default;
  NoiseGenerator& operator=(NoiseGenerator&&) = default;
  NoiseGenerator(const NoiseGenerator&) = delete;  // a copy would share its state
  NoiseGenerator& operator=(const NoiseGenerator&) = delete;
  ~NoiseGenerator() = default;

  // Standard normal numbers of this shape and dtype, on the generator's device.
  at::Tensor draw(at::IntArrayRef shape, at::ScalarType dtype);

  // uint8 bytes on the CPU that continue the sequence after restore().
  at::Tensor state() const;
  // Errors (ErrorKind::input): not a state of such a generator.
  void restore(const at::Tensor& state);

 private:
  at::Device device_;
  at::Generator generator_;
};

// Draws noise for all tokens and mixes it in: lerp(latent, noise, noise_scale) where the denoise
// mask is 1, the clean latent where it is 0. The noise moves to the latent's device.
LatentState add_noise(LatentState state, NoiseGenerator& generator, double noise_scale);
// Video first, then audio.
AvLatents add_noise(AvLatents latents, NoiseGenerator& generator, double noise_scale);

}  // namespace flotilla::diffusion
