// The transformer as the denoise loop's model: latents and sigma in, x0 predictions out.
#pragma once

#include "diffusion/denoiser.h"
#include "text/prompt_encoder.h"
#include "transformer/transformer.h"

namespace flotilla::pipeline {

// One conditional pass a step, without guidance: what the distilled weights were made for.
class TransformerDenoiser final : public diffusion::Denoiser {
 public:
  // `model` must outlive the denoiser. RoPE tables are made once, from the positions of `latents`.
  TransformerDenoiser(const transformer::Transformer& model, const text::PromptEmbedding& prompt,
                      const diffusion::AvLatents& latents);

  diffusion::AvPrediction predict(const diffusion::AvLatents& latents, double sigma,
                                  int64_t step) override;

 private:
  const transformer::Transformer& model_;
  at::Tensor video_context_;
  at::Tensor audio_context_;
  transformer::RopeTables rope_;
};

}  // namespace flotilla::pipeline
