// What a denoise loop asks of a model: x0 predictions of video and sound, made together.
// The pipeline implements it with the transformer, tests with formulas; guided_denoiser.h adds
// guidance between the two.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>

#include "diffusion/latent_state.h"

namespace flotilla::diffusion {

using NamedTensors = std::map<std::string, at::Tensor>;

// The tensor of this name, or an undefined one.
inline at::Tensor recall(const NamedTensors& memory, const std::string& name) {
  const auto entry = memory.find(name);
  return entry == memory.end() ? at::Tensor() : entry->second;
}

// Something that carries tensors from one step to the next, which a checkpoint must keep.
class Resumable {
 public:
  virtual ~Resumable() = default;
  // What has to be kept; {} when nothing.
  virtual NamedTensors memory() const { return {}; }
  // Takes back an earlier memory(); {} starts afresh. The tensors may come on another device and
  // as float32. Unknown names are ignored: the loop compares names.
  virtual void restore(const NamedTensors&) {}
};

// x0 of one stream, [B, T, D] for all tokens of its state, padding removed.
struct StreamPrediction {
  at::Tensor denoised;
  at::Tensor uncond;  // of the unconditional pass alone, where there was one; CFG++ needs it
};

struct AvPrediction {
  StreamPrediction video;
  StreamPrediction audio;
};

class Denoiser : public Resumable {
 public:
  // `sigma` is the noise level of the latents, `step` the index that decides on skipped guidance.
  virtual AvPrediction predict(const AvLatents& latents, double sigma, int64_t step) = 0;
};

}  // namespace flotilla::diffusion
