// Inputs of the transformer as the goldens store them.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "support/golden.h"
#include "transformer/prepare.h"

namespace flotilla::test {

// Latent, sigma, timesteps, context of "video" or "audio"; masks are added by the caller.
inline transformer::Modality read_modality(const Golden& golden, const std::string& stream) {
  transformer::Modality modality;
  modality.latent = golden[stream + ".latent"];
  modality.sigma = golden[stream + ".sigma"];
  modality.timesteps = ops::make_timestep_table(golden[stream + ".timesteps"]);
  modality.context = golden[stream + ".context"];
  return modality;
}

}  // namespace flotilla::test
