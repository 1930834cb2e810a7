// Mean and deviation of each latent channel over the training data. Diffusion works on normalised
// latents, the VAE and the upsampler on plain ones.
#pragma once

#include <ATen/ATen.h>

#include "loader/weight_arena.h"

namespace flotilla::vae {

struct LatentStatistics {
  at::Tensor mean;  // [C]
  at::Tensor std;   // [C]

  // latent: [B, C, F, H, W]; computed in the latent's dtype.
  at::Tensor normalize(const at::Tensor& latent) const;
  at::Tensor un_normalize(const at::Tensor& latent) const;
};

// Binds "per_channel_statistics.*"; the file's further statistics are known and not used.
LatentStatistics bind_statistics(int64_t channels, loader::WeightBinder& binder);

// The statistics alone, of a monolith or a VAE file; for the upsampler, which needs no VAE besides.
// Errors: ErrorKind::input. Collective if `load` is.
LatentStatistics load_statistics(const std::shared_ptr<const loader::Checkpoint>& checkpoint,
                                 at::ScalarType dtype, at::Device device,
                                 const loader::LoadArena& load = loader::load_alone);

}  // namespace flotilla::vae
