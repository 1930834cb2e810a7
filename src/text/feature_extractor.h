// Text features: the hidden states of all Gemma layers, normalised, laid side by side and projected
// to the width of the connectors. V1 (LTX-2.0)
// scales each layer by its range over the prompt, V2 (LTX-2.3) each token of each layer by its RMS.
// Next: connector.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "loader/weight_arena.h"
#include "text/gemma.h"

namespace flotilla::text {

enum class FeatureVersion { v1, v2 };

struct FeatureExtractorConfig {
  FeatureVersion version = FeatureVersion::v1;
  int64_t hidden_size = 0;  // of Gemma
  int64_t num_states = 0;   // of Gemma
  int64_t video_width = 0;
  int64_t audio_width = 0;

  int64_t input_width() const { return hidden_size * num_states; }

  // `transformer`: the checkpoint's config.transformer. V2 is told by its caption_proj* entries,
  // which must have the values of LTX-2.3. Errors (ErrorKind::input): some of them only, or other
  // values.
  static FeatureExtractorConfig from_json(const loader::ConfigReader& transformer,
                                          const GemmaConfig& gemma);
};

struct FeatureExtractorWeights {
  loader::Linear video;
  loader::Linear audio;  // V1: the same tensors as `video`

  // Puts the columns of each state side by side, in place: files have hidden index slow, state
  // fast; so rows can be filled state by state without gaps. Once, after the weights are loaded.
  void prepare(const FeatureExtractorConfig& config);
};

// `projection`: a binder below "text_embedding_projection.".
FeatureExtractorWeights bind_feature_extractor(const FeatureExtractorConfig& config,
                                               loader::WeightBinder projection);

struct TextFeatures {
  at::Tensor video;  // [B, T, video_width]; rows of padding mean nothing
  at::Tensor audio;  // [B, T, audio_width]
  at::Tensor mask;   // bool [B, T] on the CPU, true for tokens
};

// The input of the projection, filled state by state, so that no more than one state need be held
// beside it.
class FeatureRows {
 public:
  // mask: bool [B, T] on the CPU; `options`: of the states.
  FeatureRows(const FeatureExtractorConfig& config, at::Tensor mask,
              const at::TensorOptions& options);

  // State `index` of Gemma, [B, T, D]; each once, in any order.
  void add(int64_t index, const at::Tensor& state);
  // Of all states.
  TextFeatures project(const FeatureExtractorWeights& weights) const;

 private:
  FeatureExtractorConfig config_;
  at::Tensor mask_;            // bool [B, T] on the CPU
  at::Tensor mask_on_device_;  // [B, T, 1]
  at::Tensor rows_;            // [B, T, num_states, D]
  int64_t num_added_ = 0;
};

TextFeatures extract_features(const FeatureExtractorConfig& config,
                              const FeatureExtractorWeights& weights, const GemmaStates& gemma);

}  // namespace flotilla::text
