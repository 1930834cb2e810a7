// A denoiser that runs the passes which guidance needs and combines their predictions.
// How passes are run (as a batch, one by one, spread over ranks) is the pipeline's choice, behind
// PassRunner. Rules: ltx_pipelines/utils/denoisers.py of the LTX-2 reference.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "diffusion/denoiser.h"
#include "diffusion/guider.h"

namespace flotilla::diffusion {

enum class PassKind {
  conditional,    // positive context
  unconditional,  // negative context
  perturbed,      // positive context, self-attention of the STG blocks passed through
  isolated,       // positive context, no attention between video and sound
};
std::string_view to_string(PassKind kind);

// The passes of one step.
struct PassRequest {
  std::vector<PassKind> passes;           // the conditional one first
  std::vector<int64_t> video_stg_blocks;  // for the perturbed pass; empty: stream not perturbed
  std::vector<int64_t> audio_stg_blocks;
  // A stream that reuses its last result still feeds the other one but is not denoised itself.
  bool video_enabled = true;
  bool audio_enabled = true;
};

// The passes that one step of two guided streams needs. `force_unconditional`: also without CFG.
PassRequest plan_passes(const GuiderParams& video, const GuiderParams& audio, int64_t step,
                        bool force_unconditional = false);

class PassRunner {
 public:
  virtual ~PassRunner() = default;
  // x0 of both streams for each pass, in the order of the request.
  virtual std::vector<AvTokens> run(const PassRequest& request, const AvLatents& latents,
                                    double sigma) = 0;
};

class GuidedDenoiser : public Denoiser {
 public:
  // `runner` must outlive the denoiser.
  GuidedDenoiser(PassRunner& runner, GuiderSchedule video, GuiderSchedule audio,
                 bool force_unconditional = false);

  AvPrediction predict(const AvLatents& latents, double sigma, int64_t step) override;
  // The last guided results, when a guider skips steps.
  NamedTensors memory() const override;
  void restore(const NamedTensors& memory) override;

 private:
  PassRunner& runner_;
  GuiderSchedule video_;
  GuiderSchedule audio_;
  bool force_unconditional_;
  AvTokens last_;
};

}  // namespace flotilla::diffusion
