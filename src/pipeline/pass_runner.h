// The transformer as the model behind diffusion/guided_denoiser.h: the passes of a step
// (conditional, unconditional, perturbed, isolated) as one batch or one after the other.
#pragma once

#include "diffusion/guided_denoiser.h"
#include "text/context_builder.h"
#include "transformer/transformer.h"

namespace flotilla::pipeline {

// Text contexts [1, S, D]; the negative one is used by unconditional passes only.
struct PromptContexts {
  text::TextContext positive;
  text::TextContext negative;
};

enum class PassOrder { batch, sequence };

class TransformerPassRunner final : public diffusion::PassRunner {
 public:
  // `model` must outlive the runner. RoPE tables are made once, from the positions of `latents`;
  // later latents must have the same tokens.
  TransformerPassRunner(const transformer::Transformer& model, PromptContexts contexts,
                        const diffusion::AvLatents& latents, PassOrder order = PassOrder::batch);

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

  const transformer::Transformer& model_;
  PromptContexts contexts_;
  transformer::RopeTables rope_;
  PassOrder order_;
};

}  // namespace flotilla::pipeline
