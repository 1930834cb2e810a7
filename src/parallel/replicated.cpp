#include "parallel/replicated.h"

#include <ATen/ATen.h>

namespace flotilla::parallel {

void take_drivers_audio(diffusion::DenoiseState& state, comm::Communicator& ranks) {
  if (ranks.world_size() == 1) return;
  // A tensor of its own: the model's results of this step may share the memory of the old one.
  at::Tensor audio = state.audio.clone(at::MemoryFormat::Contiguous);
  ranks.broadcast(audio, 0);
  state.audio = audio;
}

}  // namespace flotilla::parallel
