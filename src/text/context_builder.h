// The part of the text path that lives in the LTX-2 checkpoint: text projection and the two
// connectors, from Gemma's hidden states to the contexts that the diffusion model attends to. (In
// LTX-2.0 one more projection of the context lies in the transformer itself.)
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "loader/checkpoint.h"
#include "loader/weight_arena.h"
#include "text/connector.h"
#include "text/feature_extractor.h"

namespace flotilla::text {

struct TextContext {
  at::Tensor video;  // [B, num_rows, Dv]
  at::Tensor audio;  // [B, num_rows, Da]
};

// Errors (ErrorKind::input): a checkpoint of the Gemma 4 generation, whose text path is another
// one.
void check_generation(const loader::Checkpoint& checkpoint);

class ContextBuilder {
 public:
  // Reads config.transformer of the checkpoint and checks names and shapes; no weight is read.
  // Device kMeta: the check alone. `gemma_name` names the text encoder in messages. Errors
  // (ErrorKind::input): the checkpoint wants another text encoder than `gemma` (hidden size or
  // number of layers), values that are not implemented, and see WeightBinder::finish().
  ContextBuilder(std::shared_ptr<const loader::Checkpoint> checkpoint, const GemmaConfig& gemma,
                 const std::string& gemma_name, at::ScalarType dtype, at::Device device);

  // Reads the weights. Once. Collective if `load` is.
  void load(const loader::LoadArena& load = loader::load_alone) {
    load(*arena_);
    feature_weights_.prepare(feature_config_);
  }

  const FeatureExtractorConfig& feature_config() const { return feature_config_; }
  const ConnectorConfig& connector_config(ConnectorKind kind) const;
  int64_t weight_bytes() const { return arena_->bytes(); }
  bool loaded() const { return arena_->loaded(); }

  TextFeatures features(const GemmaStates& gemma) const;
  // One connector alone; features [B, T, D], mask bool [B, T] on the CPU.
  at::Tensor connect(ConnectorKind kind, const at::Tensor& features, const at::Tensor& mask,
                     int64_t num_rows) const;
  // Both of the above, for kPromptTokens rows.
  TextContext build(const GemmaStates& gemma) const;
  // The same from rows that were filled state by state.
  TextContext build(const FeatureRows& rows) const;

 private:
  TextContext build(const TextFeatures& features) const;

  FeatureExtractorConfig feature_config_;
  ConnectorConfig video_config_;
  ConnectorConfig audio_config_;
  std::unique_ptr<loader::WeightArena> arena_;
  FeatureExtractorWeights feature_weights_;
  ConnectorWeights video_weights_;
  ConnectorWeights audio_weights_;
};

}  // namespace flotilla::text
