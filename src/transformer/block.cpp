#include "transformer/block.h"

#include <ATen/ATen.h>

#include <array>
#include <optional>
#include <span>

#include "base/error.h"
#include "ops/layer_input.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/token_rows.h"

namespace flotilla::transformer {
namespace {

// AdaLN rows of a block; rows 0-2 shift, scale, gate of self-attention, 3-5 of the feed-forward,
// 6-8 of text attention.
constexpr int64_t kSelfRows = 0;
constexpr int64_t kFeedForwardRows = 3;
constexpr int64_t kTextRows = 6;
// Rows of the cross-modal tables, which have the scale first; row 4 is the gate.
constexpr int64_t kAudioToVideoRows = 0;
constexpr int64_t kVideoToAudioRows = 2;
constexpr int64_t kCrossGateRow = 4;

// Rows of a block, and which of them a token takes.
class ModulationRows {
 public:
  ModulationRows(const at::Tensor& rows, const at::Tensor& row_of_token)
      : rows_(rows), row_of_token_(row_of_token) {}
  // For readers of these forms.
  ops::TokenModulation modulation(int64_t scale, int64_t shift, ops::InputForms forms) const {
    return {rows_.select(1, scale), rows_.select(1, shift), row_of_token_, forms};
  }
  ops::TokenGate gate(int64_t row) const { return {rows_.select(1, row), row_of_token_}; }

 private:
  const at::Tensor& rows_;  // [U, n, dim]
  const at::Tensor& row_of_token_;
};

// tables[i] + rows of every block i, one kernel for many of them where the shapes agree.
std::vector<at::Tensor> add_to_tables(const std::vector<at::Tensor>& tables,
                                      const at::Tensor& rows) {
  return at::_foreach_add(tables, std::vector<at::Tensor>(tables.size(), rows));
}

using AttendFunction = at::Tensor (VideoTokenAttention::*)(const ops::AttentionCall&) const;

// One stream's way through the block: each layer gives an update, which is added together with what
// the next layer reads (ops::residual_norm_modulate).
class Stream {
 public:
  Stream(const StreamBlockWeights& weights, const StreamInputs& inputs, const StreamRows& rows,
         const BlockArgs& args)
      : weights_(weights),
        inputs_(inputs),
        rows_(rows),
        args_(args),
        eps_(args.config.norm_eps),
        ada_(rows.ada, inputs.row_of_token),
        cross_(rows.cross, inputs.row_of_token) {}

  TextProjection text_projection() const { return {weights_.text_attention, text_context()}; }

  // Self-attention and text attention; leaves x as cross-modal attention finds it. `attend` null:
  // attention over this stream's tokens is always local (audio). `text_kv` is there once
  // args.beside_video.text is joined.
  void attend_self_and_text(at::Tensor& x, BlockSet SamplePerturbation::*kind,
                            AttendFunction attend, const ops::KeysAndValues& text_kv) {
    const at::Tensor update = self_attention(x, kind, attend);
    const ops::TokenGate self_gate = ada_.gate(kSelfRows + 2);
    if (!args_.config.cross_attention_adaln) {
      x = ops::residual_norm_modulate(x, update, self_gate, eps_).x;
      args_.beside_video.text.join();
      const auto query = ops::make_layer_input(ops::rms_norm(x, eps_), text_query_forms());
      const at::Tensor text = attend_text(query, text_kv);
      return add(x, text, {}, cross_modulations());
    }
    const std::array query = {ada_.modulation(kTextRows + 1, kTextRows, text_query_forms())};
    auto [sum, queries] = ops::residual_norm_modulate(x, update, self_gate, eps_, query);
    x = sum;
    args_.beside_video.text.join();
    const at::Tensor text = attend_text(queries.front(), text_kv);
    add(x, text, ada_.gate(kTextRows + 2), cross_modulations());
  }

  // The stream's tokens as input of cross-modal attention; `rows` names the direction.
  ops::LayerInput cross_input(const at::Tensor& x, int64_t rows) const {
    if (cross_inputs_.empty()) return ops::rms_norm_modulate(x, eps_, cross_modulation(rows));
    return cross_inputs_[rows == kAudioToVideoRows ? 0 : 1];
  }

  // Adds what comes from the other stream.
  void add_cross(at::Tensor& x, const at::Tensor& update) {
    const std::array next = {feed_forward_modulation()};
    auto [sum, inputs] = ops::residual_norm_modulate(x, update, {rows_.cross_gate, {}}, eps_, next);
    x = sum;
    feed_forward_input_ = inputs.front();
  }

  at::Tensor feed_forward(const at::Tensor& x) const {
    const ops::LayerInput input = feed_forward_input_
                                      ? *feed_forward_input_
                                      : ops::rms_norm_modulate(x, eps_, feed_forward_modulation());
    return ops::residual_norm_modulate(x, ops::feed_forward(weights_.feed_forward, input),
                                       ada_.gate(kFeedForwardRows + 2), eps_)
        .x;
  }

  const ops::RopeTable& cross_rope() const { return inputs_.cross_rope; }
  const at::Tensor& video_mask() const { return inputs_.video_mask; }
  // Another stream is there to read this one, so its tokens are prepared for that at once, in the
  // forms that the two directions take.
  void expect_reader(ops::InputForms audio_to_video, ops::InputForms video_to_audio) {
    has_reader_ = true;
    cross_forms_ = {audio_to_video, video_to_audio};
  }

 private:
  // Projected, not yet gated.
  at::Tensor self_attention(const at::Tensor& x, BlockSet SamplePerturbation::*kind,
                            AttendFunction attend) const {
    const auto& attention = weights_.self_attention;
    const ops::LayerInput normed = ops::rms_norm_modulate(
        x, eps_,
        ada_.modulation(kSelfRows + 1, kSelfRows,
                        ops::query_forms(attention) | ops::context_forms(attention)));
    const Skip skip = skip_in_block(args_.perturbations, kind, args_.block_idx, x);
    if (skip.all) return values_only(normed);
    ops::AttentionCall call = ops::project_qkv(attention, normed, normed, eps_);
    call.q_rope = inputs_.rope;
    call.k_rope = inputs_.rope;
    call.mask = inputs_.self_mask;
    call.keep = skip.keep;
    const at::Tensor heads_out =
        attend != nullptr ? (args_.attention.*attend)(call) : ops::attend(call);
    return ops::project_out(attention, heads_out, call.gate_logits);
  }

  at::Tensor values_only(const ops::LayerInput& normed) const {
    const auto& attention = weights_.self_attention;
    const at::Tensor gate_logits =
        attention.gated() ? ops::linear(normed, attention.gate) : at::Tensor();
    return ops::project_out(attention, ops::linear(normed, attention.to_v), gate_logits);
  }

  ops::InputForms text_query_forms() const { return ops::query_forms(weights_.text_attention); }

  at::Tensor attend_text(const ops::LayerInput& query, const ops::KeysAndValues& text) const {
    ops::AttentionCall call = ops::project_q(weights_.text_attention, query, text, eps_);
    call.mask = inputs_.context_mask;
    return ops::project_out(weights_.text_attention, ops::attend(call), call.gate_logits);
  }

  ops::LayerInput text_context() const {
    const ops::InputForms forms = ops::context_forms(weights_.text_attention);
    if (!args_.config.cross_attention_adaln) return ops::make_layer_input(inputs_.context, forms);
    const at::Tensor shift = rows_.prompt.select(1, 0), scale = rows_.prompt.select(1, 1);
    return ops::modulate(inputs_.context, {scale, shift, {}, forms});
  }

  void add(at::Tensor& x, const at::Tensor& update, const ops::TokenGate& gate,
           std::span<const ops::TokenModulation> next) {
    auto [sum, inputs] = ops::residual_norm_modulate(x, update, gate, eps_, next);
    x = sum;
    cross_inputs_ = std::move(inputs);
  }

  std::vector<ops::TokenModulation> cross_modulations() const {
    if (!has_reader_) return {};
    return {cross_modulation(kAudioToVideoRows), cross_modulation(kVideoToAudioRows)};
  }

  ops::TokenModulation cross_modulation(int64_t rows) const {
    return cross_.modulation(rows, rows + 1, cross_forms_[rows == kAudioToVideoRows ? 0 : 1]);
  }

  ops::TokenModulation feed_forward_modulation() const {
    return ada_.modulation(kFeedForwardRows + 1, kFeedForwardRows,
                           ops::forms_read_by({&weights_.feed_forward.in}));
  }

  const StreamBlockWeights& weights_;
  const StreamInputs& inputs_;
  const StreamRows& rows_;
  const BlockArgs& args_;
  double eps_;
  ModulationRows ada_;
  ModulationRows cross_;
  bool has_reader_ = false;
  // Of audio to video, of video to audio.
  std::array<ops::InputForms, 2> cross_forms_;
  std::vector<ops::LayerInput> cross_inputs_;  // or empty
  std::optional<ops::LayerInput> feed_forward_input_;
};

struct CrossAttention {
  const ops::AttentionWeights& weights;
  int64_t rows;
  BlockSet SamplePerturbation::*kind;
  AttendFunction attend;  // null: local
};

// attention(queries of `to`, keys and values of `from`), projected, not yet gated; undefined where
// it is skipped for all samples.
at::Tensor cross_modal(const CrossAttention& cross, const BlockArgs& args, const Stream& to,
                       const Stream& from, const at::Tensor& x_to, const at::Tensor& x_from) {
  const Skip skip = skip_in_block(args.perturbations, cross.kind, args.block_idx, x_to);
  if (skip.all) return {};
  ops::AttentionCall call =
      ops::project_qkv(cross.weights, to.cross_input(x_to, cross.rows),
                       from.cross_input(x_from, cross.rows), args.config.norm_eps);
  call.q_rope = to.cross_rope();
  call.k_rope = from.cross_rope();
  call.mask = to.video_mask();
  const at::Tensor heads_out =
      cross.attend != nullptr ? (args.attention.*cross.attend)(call) : ops::attend(call);
  const at::Tensor update = ops::project_out(cross.weights, heads_out, call.gate_logits);
  return skip.keep.defined() ? update * skip.keep : update;
}

}  // namespace

std::vector<ops::KeysAndValues> VideoTokenAttention::project_text(
    std::span<const TextProjection> layers) const {
  std::vector<ops::KeysAndValues> projected;
  for (const auto& [weights, context] : layers)
    projected.push_back(ops::project_kv(weights, context));
  return projected;
}

std::vector<StreamRows> rows_of_blocks(const TransformerConfig& config,
                                       std::span<const BlockWeights> blocks, StreamKind stream,
                                       const StreamInputs& inputs) {
  std::vector<at::Tensor> ada, prompt, cross, cross_gate;
  for (const BlockWeights& block : blocks) {
    const StreamBlockWeights& weights = stream == StreamKind::video ? block.video : block.audio;
    ada.push_back(weights.ada_table.unsqueeze(0));
    cross.push_back(weights.cross_table.narrow(0, 0, kCrossGateRow).unsqueeze(0));
    cross_gate.push_back(weights.cross_table.narrow(0, kCrossGateRow, 1).unsqueeze(0));
    if (config.cross_attention_adaln) prompt.push_back(weights.prompt_table.unsqueeze(0));
  }
  ada = add_to_tables(ada, inputs.ada_rows);
  cross = add_to_tables(cross, inputs.cross_rows);
  // A stream alone has no other one's timestep.
  if (inputs.cross_gate.defined()) cross_gate = add_to_tables(cross_gate, inputs.cross_gate);
  if (!prompt.empty() && inputs.prompt_rows.defined())
    prompt = add_to_tables(prompt, inputs.prompt_rows);
  std::vector<StreamRows> rows;
  for (size_t i = 0; i < blocks.size(); ++i) {
    rows.push_back(
        {ada[i], prompt.empty() ? at::Tensor() : prompt[i], cross[i], cross_gate[i].squeeze(1)});
  }
  return rows;
}

void run_block(const BlockWeights& weights, const BlockArgs& args, const StreamInputs* video,
               const StreamInputs* audio, at::Tensor& x_video, at::Tensor& x_audio) {
  FLOTILLA_ASSERT(video == nullptr || args.video_rows != nullptr);
  FLOTILLA_ASSERT(audio == nullptr || args.audio_rows != nullptr);
  std::optional<Stream> video_stream;
  std::optional<Stream> audio_stream;
  if (video != nullptr) video_stream.emplace(weights.video, *video, *args.video_rows, args);
  if (audio != nullptr) audio_stream.emplace(weights.audio, *audio, *args.audio_rows, args);
  const bool run_video = video != nullptr && video->enabled;
  const bool run_audio = audio != nullptr && audio->enabled;

  if (video_stream && audio_stream) {
    const auto& to_video = weights.audio_to_video;
    const auto& to_audio = weights.video_to_audio;
    video_stream->expect_reader(ops::query_forms(to_video), ops::context_forms(to_audio));
    audio_stream->expect_reader(ops::context_forms(to_video), ops::query_forms(to_audio));
  }
  // Both directions of cross-modal attention read the tokens as they are before either. The handles
  // also keep what the side reads until it is joined.
  const at::Tensor audio_at_start = x_audio;
  const gpu::SideStream& side = args.beside_video.audio;
  std::vector<TextProjection> texts;
  std::vector<ops::KeysAndValues> text_kv;
  args.beside_video.text.run([&] {
    if (run_video) texts.push_back(video_stream->text_projection());
    if (run_audio) texts.push_back(audio_stream->text_projection());
    text_kv = args.attention.project_text(texts);
  });
  side.run([&] {
    if (run_audio)
      audio_stream->attend_self_and_text(x_audio, &SamplePerturbation::audio_self, nullptr,
                                         text_kv.back());
  });
  if (run_video) {
    video_stream->attend_self_and_text(x_video, &SamplePerturbation::video_self,
                                       &VideoTokenAttention::self_attention, text_kv.front());
  }
  side.join();
  const at::Tensor video_before = x_video;
  const at::Tensor audio_before = x_audio;
  const bool cross = video_stream && audio_stream;
  side.run([&] {
    if (!run_audio) return;
    if (cross) {
      const at::Tensor update =
          cross_modal({weights.video_to_audio, kVideoToAudioRows,
                       &SamplePerturbation::video_to_audio, &VideoTokenAttention::video_to_audio},
                      args, *audio_stream, *video_stream, audio_before, video_before);
      if (update.defined()) audio_stream->add_cross(x_audio, update);
    }
    x_audio = audio_stream->feed_forward(x_audio);
  });
  if (run_video) {
    if (cross) {
      const at::Tensor update = cross_modal(
          {weights.audio_to_video, kAudioToVideoRows, &SamplePerturbation::audio_to_video, nullptr},
          args, *video_stream, *audio_stream, video_before, audio_before);
      if (update.defined()) video_stream->add_cross(x_video, update);
    }
    x_video = video_stream->feed_forward(x_video);
  }
  side.join();
}

}  // namespace flotilla::transformer
