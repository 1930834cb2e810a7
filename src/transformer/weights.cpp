#include "transformer/weights.h"

#include <fmt/format.h>

namespace flotilla::transformer {
namespace {

// The official names: the video stream has none, the audio stream "audio_" in front.
struct StreamNames {
  std::string prefix;
  std::string cross_scale_shift;
  std::string cross_gate;
  std::string cross_table;
};
const StreamNames kVideoNames = {"", "av_ca_video_scale_shift_adaln_single.",
                                 "av_ca_a2v_gate_adaln_single.", "scale_shift_table_a2v_ca_video"};
const StreamNames kAudioNames = {"audio_", "av_ca_audio_scale_shift_adaln_single.",
                                 "av_ca_v2a_gate_adaln_single.", "scale_shift_table_a2v_ca_audio"};

StreamBlockWeights bind_stream_block(const TransformerConfig& config, const StreamConfig& stream,
                                     const StreamNames& names, loader::WeightBinder block) {
  const int64_t dim = stream.dim();
  const auto attention = [&](const std::string& name, int64_t context_dim) {
    return ops::bind_attention(
        block.scope(names.prefix + name + "."),
        {dim, context_dim, stream.heads, stream.head_dim, config.gated_attention});
  };
  StreamBlockWeights weights;
  weights.self_attention = attention("attn1", dim);
  weights.text_attention = attention("attn2", stream.context_dim);
  weights.feed_forward =
      ops::bind_feed_forward(block.scope(names.prefix + "ff."), dim, 4, stream.ff_bias);
  weights.ada_table = block.take(names.prefix + "scale_shift_table", {config.ada_rows(), dim});
  if (config.cross_attention_adaln) {
    weights.prompt_table = block.take(names.prefix + "prompt_scale_shift_table", {2, dim});
  }
  weights.cross_table = block.take(names.cross_table, {5, dim});
  return weights;
}

BlockWeights bind_block(const TransformerConfig& config, loader::WeightBinder block) {
  const int64_t video = config.video.dim();
  const int64_t audio = config.audio.dim();
  BlockWeights weights;
  weights.video = bind_stream_block(config, config.video, kVideoNames, block);
  weights.audio = bind_stream_block(config, config.audio, kAudioNames, block);
  // Cross-modal attention runs in the width of the audio heads, in both directions.
  weights.audio_to_video = ops::bind_attention(
      block.scope("audio_to_video_attn."),
      {video, audio, config.audio.heads, config.audio.head_dim, config.gated_attention});
  weights.video_to_audio = ops::bind_attention(
      block.scope("video_to_audio_attn."),
      {audio, video, config.audio.heads, config.audio.head_dim, config.gated_attention});
  return weights;
}

StreamWeights bind_stream(const TransformerConfig& config, const StreamConfig& stream,
                          const StreamNames& names, loader::WeightBinder binder) {
  const int64_t dim = stream.dim();
  StreamWeights weights;
  weights.patchify = take_linear(binder, names.prefix + "patchify_proj", stream.in_channels, dim);
  weights.adaln = bind_adaln(binder.scope(names.prefix + "adaln_single."), dim, config.ada_rows());
  if (config.cross_attention_adaln && config.prompt_adaln) {
    weights.prompt_adaln = bind_adaln(binder.scope(names.prefix + "prompt_adaln_single."), dim, 2);
  }
  weights.cross_scale_shift = bind_adaln(binder.scope(names.cross_scale_shift), dim, 4);
  weights.cross_gate = bind_adaln(binder.scope(names.cross_gate), dim, 1);
  if (config.caption_projection) {
    auto caption = binder.scope(names.prefix + "caption_projection.");
    weights.caption_projection.linear_1 =
        take_linear(caption, "linear_1", config.caption_channels, dim);
    weights.caption_projection.linear_2 = take_linear(caption, "linear_2", dim, dim);
  }
  weights.output_table = binder.take(names.prefix + "scale_shift_table", {2, dim});
  weights.output = take_linear(binder, names.prefix + "proj_out", dim, stream.out_channels);
  return weights;
}

void visit_layer(ops::LinearWeights& layer, const VisitTensor& visit) {
  visit(layer.weight);
  visit(layer.bias);
  visit(layer.row_scales);
}

void visit_layer(loader::Linear& layer, const VisitTensor& visit) {
  visit(layer.weight);
  visit(layer.bias);
}

void visit_attention(ops::AttentionWeights& attention, const VisitTensor& visit) {
  for (auto* layer :
       {&attention.to_q, &attention.to_k, &attention.to_v, &attention.to_out, &attention.gate})
    visit_layer(*layer, visit);
  visit(attention.q_norm);
  visit(attention.k_norm);
}

void visit_stream(StreamBlockWeights& stream, const VisitTensor& visit) {
  visit_attention(stream.self_attention, visit);
  visit_attention(stream.text_attention, visit);
  visit_layer(stream.feed_forward.in, visit);
  visit_layer(stream.feed_forward.out, visit);
  visit(stream.ada_table);
  visit(stream.prompt_table);
  visit(stream.cross_table);
}

void visit_stream(StreamWeights& stream, const VisitTensor& visit) {
  for (auto* adaln :
       {&stream.adaln, &stream.prompt_adaln, &stream.cross_scale_shift, &stream.cross_gate}) {
    visit_layer(adaln->linear_1, visit);
    visit_layer(adaln->linear_2, visit);
    visit_layer(adaln->rows, visit);
  }
  for (auto* layer : {&stream.patchify, &stream.caption_projection.linear_1,
                      &stream.caption_projection.linear_2, &stream.output})
    visit_layer(*layer, visit);
  visit(stream.output_table);
}

}  // namespace

TransformerWeights bind_transformer(const TransformerConfig& config, loader::WeightBinder binder) {
  TransformerWeights weights;
  weights.video = bind_stream(config, config.video, kVideoNames, binder);
  weights.audio = bind_stream(config, config.audio, kAudioNames, binder);
  if (config.keyframe_embedding) {
    // Optional: the reference starts it at zero, so a file without it means "no embedding".
    weights.keyframe_embedding =
        binder.take_optional("keyframes_abs_pos_embedding", {1, config.video.dim()});
  }
  for (int64_t i = 0; i < config.num_layers; ++i) {
    weights.blocks.push_back(
        bind_block(config, binder.scope(fmt::format("transformer_blocks.{}.", i))));
  }
  return weights;
}

void visit_tensors(BlockWeights& block, const VisitTensor& visit) {
  visit_stream(block.video, visit);
  visit_stream(block.audio, visit);
  visit_attention(block.audio_to_video, visit);
  visit_attention(block.video_to_audio, visit);
}

void visit_tensors_outside_blocks(TransformerWeights& weights, const VisitTensor& visit) {
  visit_stream(weights.video, visit);
  visit_stream(weights.audio, visit);
  visit(weights.keyframe_embedding);
}

std::vector<std::string> names_of_text_encoder() {
  return {"video_embeddings_connector.", "audio_embeddings_connector."};
}

}  // namespace flotilla::transformer
