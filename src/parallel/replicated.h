// What every rank computes alike: the audio tokens. On CPUs the ranks' bytes are equal. On GPUs
// sums may run in another order on each, so after each step all ranks take the driver's tokens, and
// differences cannot grow from step to step.
#pragma once

#include "comm/communicator.h"
#include "diffusion/denoise_state.h"

namespace flotilla::parallel {

// Rank 0's audio tokens replace those of all ranks. Collective; for a step's end.
void take_drivers_audio(diffusion::DenoiseState& state, comm::Communicator& ranks);

}  // namespace flotilla::parallel
