// A toy model for loops: x0 = 0.6 tanh(x) + 0.1 sigma on both streams, and states made of tensors.
#pragma once

#include <ATen/ATen.h>

#include "diffusion/denoiser.h"
#include "diffusion/latent_state.h"

namespace flotilla::test {

inline at::Tensor toy_prediction(const at::Tensor& latent, double sigma) {
  return at::tanh(latent) * 0.6 + 0.1 * static_cast<float>(sigma);
}

class ToyDenoiser : public diffusion::Denoiser {
 public:
  diffusion::AvPrediction predict(const diffusion::AvLatents& latents, double sigma,
                                  int64_t) override {
    ++num_calls;
    const at::Tensor video = toy_prediction(latents.video.latent, sigma);
    const at::Tensor audio = toy_prediction(latents.audio.latent, sigma);
    return {.video = {video, video * 0.5}, .audio = {audio, audio * 0.5}};
  }
  int64_t num_calls = 0;
};

// A state of free tokens; positions play no part in a toy.
inline diffusion::LatentState toy_state(const at::Tensor& latent) {
  return {.latent = latent,
          .clean = at::zeros_like(latent),
          .denoise_mask = at::ones({latent.size(0), latent.size(1), 1}),
          .num_target_tokens = latent.size(1)};
}

}  // namespace flotilla::test
