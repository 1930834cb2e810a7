// What a stage asks of the transformer: velocities for its tokens. The interface that the parallel
// methods stand behind: a model bound to the token positions of one stage, so that whatever depends
// on positions (RoPE tables, shards, tiles) is made once and not once a step.
#pragma once

#include "transformer/transformer.h"

namespace flotilla::transformer {

// Where the tokens of a stage lie; either may be undefined.
struct TokenPositions {
  at::Tensor video;  // [1, 3, T, 2]: seconds, pixels, pixels
  at::Tensor audio;  // [1, 1, T, 2]: seconds
};

class VelocityModel {
 public:
  virtual ~VelocityModel() = default;
  // Modalities hold the tokens of the whole clip, on every rank alike, and so do the results.
  // Collective where there are several ranks.
  virtual Velocity forward(const Modality* video, const Modality* audio,
                           const Perturbations& perturbations) const = 0;
};

// One device computes all tokens.
class LocalVelocityModel final : public VelocityModel {
 public:
  // `model` and `graphs` (null: none) must outlive this object.
  LocalVelocityModel(const Transformer& model, const TokenPositions& positions,
                     at::ScalarType dtype, BlockGraphs* graphs = nullptr)
      : model_(model),
        graphs_(graphs),
        rope_(make_rope_tables(model.config(), positions.video, positions.audio, dtype)) {}

  Velocity forward(const Modality* video, const Modality* audio,
                   const Perturbations& perturbations) const override {
    return model_.forward(video, audio, rope_, perturbations, attention_, graphs_);
  }

 private:
  const Transformer& model_;
  BlockGraphs* graphs_;
  LocalVideoTokenAttention attention_;
  RopeTables rope_;
};

}  // namespace flotilla::transformer
