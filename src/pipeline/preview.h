// Pictures of a clip while it is denoised, for programs that watch a job and have asked for them:
// what the model makes of the clip's first picture at a step, told as an event (docs/running.md).
// They change no byte of the job: nothing is drawn from its noise, nothing in its state is touched,
// and a picture that fails costs the pictures that would follow, not the job.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "diffusion/denoiser.h"
#include "io/events.h"
#include "pipeline/stages.h"
#include "vae/decoder.h"

namespace flotilla::pipeline {

// Of a whole job; the same on all ranks but for `events`.
struct Previews {
  int64_t every = 1;                // steps
  io::EventSink* events = nullptr;  // the driver's; null: nobody listens
  bool is_over = false;             // one has failed
};

// Of one stage: stands between the loop and its denoiser to see what that says of the picture.
// Without previews in the session it only hands on.
class StagePreviews final : public diffusion::Denoiser {
 public:
  // All must outlive this object.
  StagePreviews(diffusion::Denoiser& denoiser, const Session& session, const StagePlan& stage)
      : denoiser_(denoiser), session_(session), stage_(stage) {}

  diffusion::AvPrediction predict(const diffusion::AvLatents& latents, double sigma,
                                  int64_t step) override;
  diffusion::NamedTensors memory() const override { return denoiser_.memory(); }
  void restore(const diffusion::NamedTensors& memory) override { denoiser_.restore(memory); }

  // After `step`, from 1, once the ranks have agreed to go on: where a picture is due the driver
  // decodes and tells it, with the decoder that the end of the job takes over. The others wait for
  // it as they do for a checkpoint. Collective. Errors: a rank is gone.
  void after_step(int64_t step);

 private:
  bool is_due(int64_t step) const;
  void tell(const vae::VideoDecoder& decoder, int64_t step) const;
  void give_up(const Error& error);

  diffusion::Denoiser& denoiser_;
  const Session& session_;
  const StagePlan& stage_;
  at::Tensor tokens_;  // [1, H * W, C]: x0 of the first latent frame; of the driver
};

}  // namespace flotilla::pipeline
