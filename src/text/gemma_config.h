// Sizes and settings of the Gemma 3 text model, read from the folder's config.json. Defaults are
// those of the Hugging Face configuration class, since released folders leave out what equals them.
#pragma once

#include <cstdint>
#include <vector>

#include "loader/config_reader.h"

namespace flotilla::text {

// How far a layer's attention reaches back: to the start, or over a window.
enum class AttentionSpan { full, sliding };

// angle = position / factor * theta^(-2 i / head_dim).
struct GemmaRope {
  double theta = 0.0;
  double factor = 1.0;
};

struct GemmaConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t sliding_window = 0;          // a token sees itself and the sliding_window - 1 before it
  double query_pre_attn_scalar = 0.0;  // attention scores are divided by its square root
  double rms_norm_eps = 0.0;
  GemmaRope full_rope;
  GemmaRope sliding_rope;
  std::vector<AttentionSpan> layers;  // one a layer

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  const GemmaRope& rope(AttentionSpan span) const {
    return span == AttentionSpan::full ? full_rope : sliding_rope;
  }
  // Hidden states of a forward: the embedding and each layer.
  int64_t num_states() const { return num_layers() + 1; }

  // `config`: the whole config.json. Errors (ErrorKind::input): another model type, a setting that
  // is not implemented (logit soft caps, biases, ...), impossible sizes; each names the entry.
  static GemmaConfig from_json(const loader::ConfigReader& config);
};

}  // namespace flotilla::text
