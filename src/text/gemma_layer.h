// One decoder layer of Gemma 3 as a function of hidden states, rotation table and mask, so that the
// caller decides what a token sees. Formulas: Gemma 3 report (arXiv 2503.19786) and the Hugging
// Face Gemma3DecoderLayer: norms before and after both halves, RMSNorm on q and k per head, grouped
// keys.
#pragma once

#include <ATen/core/Tensor.h>

#include "loader/weight_arena.h"
#include "text/gemma_config.h"

namespace flotilla::text {

struct GemmaLayerWeights {
  at::Tensor input_norm, post_attention_norm;                // [D]
  at::Tensor pre_feed_forward_norm, post_feed_forward_norm;  // [D]
  at::Tensor q_proj, k_proj, v_proj, o_proj;                 // no biases
  at::Tensor q_norm, k_norm;                                 // [head_dim]
  at::Tensor gate_proj, up_proj, down_proj;
};

// `layer`: a binder below "layers.<i>.".
GemmaLayerWeights bind_gemma_layer(const GemmaConfig& config, loader::WeightBinder layer);

// Rotations of T positions, in the dtype of the model.
struct GemmaRotation {
  at::Tensor cos, sin;  // [T, head_dim]; both halves of head_dim hold the same angles
};

// Positions first, first + 1, ..., first + count - 1. Angles are float32, whatever `options` says.
GemmaRotation make_gemma_rotation(const GemmaRope& rope, int64_t head_dim, int64_t first,
                                  int64_t count, const at::TensorOptions& options);

struct GemmaView {
  GemmaRotation rotation;
  at::Tensor mask;  // bool, broadcasts to [B, H, T, T], true where a query sees a key; undefined:
                    // each token sees itself and all before it
};

// Keys and values of one layer for the tokens so far, so that a further token costs one row. Batch
// of one.
class KeyValueCache {
 public:
  // Room for `capacity` tokens. A sliding layer keeps all of them, and shows the window.
  KeyValueCache(const GemmaConfig& config, AttentionSpan span, int64_t capacity,
                const at::TensorOptions& options);

  struct Seen {
    at::Tensor keys, values;  // [1, kv_heads, tokens, head_dim]
  };
  // Adds rotated keys and values of new tokens, [1, kv_heads, n, head_dim]. Many at first, then
  // one by one: a lone token sees all that comes back.
  Seen append(const at::Tensor& keys, const at::Tensor& values);

 private:
  at::Tensor keys_, values_;  // [1, kv_heads, capacity, head_dim]
  int64_t window_ = 0;        // tokens that one sees, itself included
  int64_t length_ = 0;
};

// The state between two layers, and the same normed for the layer behind.
struct GemmaHidden {
  at::Tensor state;   // [B, T, D]
  at::Tensor normed;  // [B, T, D]
};

// One layer; with a cache the tokens follow those that it holds. `next_norm` [D]: of the layer
// behind, or the model's last norm; undefined: `normed` comes back undefined.
GemmaHidden gemma_layer(const GemmaConfig& config, const GemmaLayerWeights& weights,
                        const GemmaHidden& hidden, const at::Tensor& next_norm,
                        const GemmaView& view, KeyValueCache* cache = nullptr);

}  // namespace flotilla::text
