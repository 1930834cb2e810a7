// The Gemma 3 text model of a Hugging Face folder: token ids to the hidden states of all layers,
// which the LTX-2 text features are made of. A model can be held in part: some consecutive layers,
// so that several ranks hold one model together (parallel/distributed_text_encoder.h). Next:
// feature_extractor.h; for generating text, gemma_decoder.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "loader/weight_arena.h"
#include "text/gemma_config.h"
#include "text/gemma_layer.h"

namespace flotilla::text {

// Layers [begin, end).
struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool contains(int64_t layer) const { return begin <= layer && layer < end; }
};

// Those that are not held are undefined.
struct GemmaWeights {
  at::Tensor embed_tokens;                // [vocab, D]; with layer 0
  std::vector<GemmaLayerWeights> layers;  // one a layer of the model
  at::Tensor norm;                        // [D]; with the last layer
};

// `model`: a binder below "language_model.model." or "model.language_model.".
GemmaWeights bind_gemma(const GemmaConfig& config, loader::WeightBinder model,
                        const LayerRange& range);

// Prompts as the layers see them.
struct GemmaTokens {
  at::Tensor ids;     // int64 [B, T] on the CPU
  at::Tensor mask;    // bool [B, T] on the CPU, true for tokens
  int64_t first = 0;  // position of column 0
};

// ids, mask: int64 [B, S] on the CPU; mask 1 for tokens, 0 for padding on the left. Positions count
// from the start of the padded row, as in the reference. Columns that are padding in every row are
// left out (T <= S): no token sees them, so the states of tokens are the same and a short prompt is
// cheap.
GemmaTokens trim_padding(const at::Tensor& ids, const at::Tensor& mask);

// int64 [B, T] on any device -> [B, T, D]: state 0, scaled.
at::Tensor gemma_embed(const GemmaWeights& weights, const at::Tensor& ids);

// What the layers from `first` on begin with, of the state before them.
GemmaHidden begin_gemma_layers(const GemmaConfig& config, const GemmaWeights& weights,
                               int64_t first, const at::Tensor& state);
// The norm that reads the state behind `layer`: the next layer's, or the last one; undefined where
// the next layer is not held.
const at::Tensor& norm_behind(const GemmaWeights& weights, int64_t layer);

// Gets the states in order: layer i gives state i + 1, the last layer's after the final norm.
// Padding rows hold values that mean nothing.
using StateVisitor = std::function<void(int64_t index, const at::Tensor& state)>;

// Runs the layers of `range` on `state`, the one before them [B, T, D]; gives the one after them.
at::Tensor gemma_layers(const GemmaConfig& config, const GemmaWeights& weights,
                        const GemmaTokens& tokens, const LayerRange& range, at::Tensor state,
                        const StateVisitor& visit);

struct GemmaStates {
  std::vector<at::Tensor> states;  // config.num_states() tensors [B, T, D]
  at::Tensor mask;                 // bool [B, T] on the CPU, true for tokens
};

// All states of a whole model; ids and mask as in trim_padding().
GemmaStates gemma_forward(const GemmaConfig& config, const GemmaWeights& weights,
                          const at::Tensor& ids, const at::Tensor& mask);

// Configuration and weights of a folder, all or a range of layers; freed with the object.
class Gemma {
 public:
  // Reads config.json and checks names and shapes of the weights; no weight is read. Device kMeta:
  // the check alone, nothing is allocated. `range`: the layers to hold, none: all. The embedding
  // comes with the first layer, the final norm with the last one. `weights`: the folder's
  // checkpoint, where it is open already.
  // Errors (ErrorKind::input): see check_gemma_folder, GemmaConfig::from_json,
  // WeightBinder::finish; a Git-LFS pointer in place of the weights. ErrorKind::memory: the weights
  // cannot be allocated.
  Gemma(const std::filesystem::path& folder, at::ScalarType dtype, at::Device device,
        std::optional<LayerRange> range = std::nullopt,
        std::shared_ptr<const loader::Checkpoint> weights = nullptr);

  // Reads the weights. Once. Collective if `load` is.
  void load(const loader::LoadArena& load = loader::load_alone) { load(*arena_); }

  const GemmaConfig& config() const { return config_; }
  const GemmaWeights& weights() const { return weights_; }
  const loader::Checkpoint& checkpoint() const { return arena_->checkpoint(); }
  int64_t weight_bytes() const { return arena_->bytes(); }
  // Bytes read so far through the folder's checkpoint.
  int64_t bytes_read() const { return arena_->checkpoint().bytes_read(); }

  // See gemma_forward().
  GemmaStates forward(const at::Tensor& ids, const at::Tensor& mask) const;
  // See gemma_embed() and gemma_layers(); what they need must be held.
  at::Tensor embed(const at::Tensor& ids) const;
  at::Tensor run_layers(const GemmaTokens& tokens, const LayerRange& range, at::Tensor hidden,
                        const StateVisitor& visit) const;

 private:
  GemmaConfig config_;
  std::unique_ptr<loader::WeightArena> arena_;
  GemmaWeights weights_;
};

}  // namespace flotilla::text
