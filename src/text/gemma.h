// The Gemma 3 text model of a Hugging Face folder: token ids to the hidden states of all layers,
// which the LTX-2 text features are made of. No key/value cache and no logits: one forward over the
// prompt. Next: feature_extractor.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "loader/weight_arena.h"
#include "text/gemma_config.h"
#include "text/gemma_layer.h"

namespace flotilla::text {

struct GemmaWeights {
  at::Tensor embed_tokens;  // [vocab, D]
  std::vector<GemmaLayerWeights> layers;
  at::Tensor norm;  // [D]
};

// `model`: a binder below "language_model.model." or "model.language_model.".
GemmaWeights bind_gemma(const GemmaConfig& config, loader::WeightBinder model);

struct GemmaStates {
  // config.num_states() tensors [B, T, D]: the scaled embedding, then each layer's result, the last
  // one after the final norm. Padding rows hold values that mean nothing.
  std::vector<at::Tensor> states;
  at::Tensor mask;  // bool [B, T] on the CPU, true for tokens
};

// ids, mask: int64 [B, S] on the CPU; mask 1 for tokens, 0 for padding on the left. Positions count
// from the start of the padded row, as in the reference. Columns that are padding in every row are
// left out (T <= S): no token sees them, so the states of tokens are the same and a short prompt is
// cheap.
GemmaStates gemma_forward(const GemmaConfig& config, const GemmaWeights& weights,
                          const at::Tensor& ids, const at::Tensor& mask);

// Configuration and weights of a folder; freed with the object.
class Gemma {
 public:
  // Reads config.json and checks names and shapes of the weights; no weight is read. Device kMeta:
  // the check alone, nothing is allocated.
  // Errors (ErrorKind::input): see check_gemma_folder, GemmaConfig::from_json,
  // WeightBinder::finish; a Git-LFS pointer in place of the weights. ErrorKind::memory: the weights
  // cannot be allocated.
  Gemma(const std::filesystem::path& folder, at::ScalarType dtype, at::Device device);

  // Reads the weights. Once.
  void load() { arena_->load(); }

  const GemmaConfig& config() const { return config_; }
  const GemmaWeights& weights() const { return weights_; }
  int64_t weight_bytes() const { return arena_->bytes(); }
  // Bytes read from the folder's files so far.
  int64_t bytes_read() const { return arena_->checkpoint().bytes_read(); }

  // See gemma_forward().
  GemmaStates forward(const at::Tensor& ids, const at::Tensor& mask) const;

 private:
  GemmaConfig config_;
  std::unique_ptr<loader::WeightArena> arena_;
  GemmaWeights weights_;
};

}  // namespace flotilla::text
