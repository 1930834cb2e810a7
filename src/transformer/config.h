// Configuration of the audio-video diffusion transformer, read from the checkpoint's metadata.
#pragma once

#include <cstdint>
#include <vector>

#include "loader/checkpoint.h"
#include "loader/config_reader.h"
#include "ops/rope.h"

namespace flotilla::transformer {

struct StreamConfig {
  int64_t in_channels = 128;
  int64_t out_channels = 128;
  int64_t heads = 32;
  int64_t head_dim = 128;
  int64_t context_dim = 4096;    // width of the text context that the blocks read
  std::vector<int64_t> max_pos;  // one an axis: seconds, pixels, pixels; audio: seconds
  bool ff_bias = true;

  int64_t dim() const { return heads * head_dim; }
};

struct TransformerConfig {
  int64_t num_layers = 48;
  StreamConfig video;
  StreamConfig audio;
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
  ops::RopeType rope_type = ops::RopeType::split;
  bool double_frequencies = false;
  double timestep_scale = 1000.0;
  double cross_timestep_scale = 1.0;  // av_ca_timestep_scale_multiplier
  bool gated_attention = false;
  bool cross_attention_adaln = false;  // 9 AdaLN rows a stream instead of 6, and prompt tables
  bool prompt_adaln = true;            // the timestep part of the prompt modulation
  bool caption_projection = false;     // 2.0: the text context is projected here
  int64_t caption_channels = 0;
  bool keyframe_embedding = false;

  // AdaLN rows of a block: shift, scale, gate of self-attention, feed-forward and, with
  // cross_attention_adaln, text attention.
  int64_t ada_rows() const { return cross_attention_adaln ? 9 : 6; }
  ops::RopeSpec video_rope() const;
  ops::RopeSpec audio_rope() const;
  // Both streams' rotation in cross-modal attention: time only, in the width of the audio heads.
  ops::RopeSpec cross_rope() const;

  // `reader`: the "transformer" object. Errors (ErrorKind::input): a value that is not implemented.
  static TransformerConfig from_json(const loader::ConfigReader& reader);
  static TransformerConfig from_checkpoint(const loader::Checkpoint& checkpoint);
};

}  // namespace flotilla::transformer
