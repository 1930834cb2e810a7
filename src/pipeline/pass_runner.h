// The transformer as the model behind diffusion/guided_denoiser.h: the passes of a step
// (conditional, unconditional, perturbed, isolated) as one batch or one after the other.
#pragma once

#include <string_view>

#include "diffusion/guided_denoiser.h"
#include "text/context_builder.h"
#include "transformer/velocity_model.h"

namespace flotilla::pipeline {

// Text contexts [1, S, D]; the negative one is used by unconditional passes only.
struct PromptContexts {
  text::TextContext positive;
  text::TextContext negative;
};

enum class PassOrder { batch, sequence };
inline std::string_view to_string(PassOrder order) {
  return order == PassOrder::batch ? "batch" : "sequence";
}

class TransformerPassRunner final : public diffusion::PassRunner {
 public:
  // `model` must outlive the runner and be bound to the positions of the latents that run() gets.
  TransformerPassRunner(const transformer::VelocityModel& model, PromptContexts contexts,
                        PassOrder order = PassOrder::batch);

  std::vector<diffusion::AvTokens> run(const diffusion::PassRequest& request,
                                       const diffusion::AvLatents& latents, double sigma) override;

 private:
  struct Timesteps {
    at::Tensor video;  // [1, T, 1]
    at::Tensor audio;
  };
  // x0 of these passes, in their order, from one forward of the transformer.
  std::vector<diffusion::AvTokens> forward(std::span<const diffusion::PassKind> passes,
                                           const diffusion::PassRequest& request,
                                           const diffusion::AvLatents& latents, double sigma,
                                           const Timesteps& timesteps) const;

  const transformer::VelocityModel& model_;
  PromptContexts contexts_;
  PassOrder order_;
};

}  // namespace flotilla::pipeline
