// Weights of the transformer as plain structs of tensors, in the names of the official files.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "loader/weight_arena.h"
#include "ops/attention.h"
#include "ops/feed_forward.h"
#include "transformer/adaln.h"
#include "transformer/config.h"

namespace flotilla::transformer {

// One stream (video or audio) of a block.
struct StreamBlockWeights {
  ops::AttentionWeights self_attention;
  ops::AttentionWeights text_attention;
  ops::FeedForwardWeights feed_forward;
  at::Tensor ada_table;  // [6 or 9, dim]
  at::Tensor
      prompt_table;  // [2, dim]: shift, scale of the text; undefined without cross_attention_adaln
  at::Tensor cross_table;  // [5, dim]: scale, shift (a2v), scale, shift (v2a), gate
};

struct BlockWeights {
  StreamBlockWeights video;
  StreamBlockWeights audio;
  ops::AttentionWeights audio_to_video;  // queries video, keys and values audio
  ops::AttentionWeights video_to_audio;  // queries audio, keys and values video
};

struct CaptionProjectionWeights {
  loader::Linear linear_1;
  loader::Linear linear_2;
};

// What a stream has outside the blocks.
struct StreamWeights {
  loader::Linear patchify;
  AdaLnWeights adaln;
  AdaLnWeights prompt_adaln;       // used with prompt_adaln only
  AdaLnWeights cross_scale_shift;  // 4 rows
  AdaLnWeights cross_gate;         // 1 row; the gate of what this stream receives
  CaptionProjectionWeights caption_projection;
  at::Tensor output_table;  // [2, dim]: shift, scale
  loader::Linear output;
};

struct TransformerWeights {
  StreamWeights video;
  StreamWeights audio;
  at::Tensor keyframe_embedding;  // [1, video dim] or undefined
  std::vector<BlockWeights> blocks;
};

// `binder` stands at "model.diffusion_model.". Shapes follow the configuration.
TransformerWeights bind_transformer(const TransformerConfig& config, loader::WeightBinder binder);

// Calls `visit` with every tensor of a block, and with every one outside of the blocks; also with
// those that are undefined.
using VisitTensor = std::function<void(at::Tensor&)>;
void visit_tensors(BlockWeights& block, const VisitTensor& visit);
void visit_tensors_outside_blocks(TransformerWeights& weights, const VisitTensor& visit);

// Names below the prefix that belong to the text encoder, not to the transformer.
std::vector<std::string> names_of_text_encoder();

}  // namespace flotilla::transformer
