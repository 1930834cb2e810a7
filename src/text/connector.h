// Embeddings connectors: a small transformer without a mask that turns text features into the
// context of the diffusion model. The rows behind the prompt become learnable registers, so every
// row counts. One connector for video, one for audio.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "loader/config_reader.h"
#include "loader/weight_arena.h"
#include "ops/attention.h"
#include "ops/feed_forward.h"

namespace flotilla::text {

enum class ConnectorKind { video, audio };

struct ConnectorConfig {
  int64_t num_heads = 0;
  int64_t head_dim = 0;
  int64_t num_layers = 0;
  int64_t max_position = 0;
  ops::RopeType rope_type = ops::RopeType::split;
  bool double_frequencies = false;
  bool gated = false;
  bool feed_forward_bias = true;

  int64_t width() const { return num_heads * head_dim; }

  // `transformer`: the checkpoint's config.transformer, entries connector_* and audio_connector_*;
  // sizes that the audio connector lacks are those of the video connector.
  // Errors (ErrorKind::input): a value that is not implemented, impossible sizes.
  static ConnectorConfig from_json(const loader::ConfigReader& transformer, ConnectorKind kind);
};

struct ConnectorWeights {
  struct Block {
    ops::AttentionWeights attention;
    ops::FeedForwardWeights feed_forward;
  };
  at::Tensor registers;  // [128, D]
  std::vector<Block> blocks;
};

// `connector`: a binder below "...video_embeddings_connector." or its audio twin.
ConnectorWeights bind_connector(const ConnectorConfig& config, loader::WeightBinder connector);

// Valid rows first, in their order; row p behind them is register p % 128, so the registers keep
// their places whatever the length of the prompt. features: [B, T, D]; mask: bool [B, T] on the
// CPU.
// -> [B, num_rows, D]
at::Tensor fill_with_registers(const at::Tensor& features, const at::Tensor& mask,
                               const at::Tensor& registers, int64_t num_rows);

// fill_with_registers(), the blocks and a final norm. -> [B, num_rows, D]
at::Tensor run_connector(const ConnectorConfig& config, const ConnectorWeights& weights,
                         const at::Tensor& features, const at::Tensor& mask, int64_t num_rows);

}  // namespace flotilla::text
