#include "transformer/block.h"

#include <ATen/ATen.h>

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

// A block's table plus the timestep's rows, spread over the tokens on demand.
class ModulationRows {
 public:
  ModulationRows(const at::Tensor& table, const at::Tensor& rows, const at::Tensor& row_of_token)
      : rows_(table.unsqueeze(0) + rows), row_of_token_(row_of_token) {}
  // Rows `scale` and `shift`, for the functions that take them unspread.
  ops::TokenModulation modulation(int64_t scale, int64_t shift) const {
    return {rows_.select(1, scale), rows_.select(1, shift), row_of_token_};
  }
  // Broadcasts to [B, T, dim].
  at::Tensor operator[](int64_t row) const {
    return ops::expand_rows(rows_.select(1, row), row_of_token_);
  }

 private:
  at::Tensor rows_;  // [U, n, dim]
  const at::Tensor& row_of_token_;
};

using AttendFunction = at::Tensor (VideoTokenAttention::*)(const ops::AttentionCall&) const;

// One stream's way through the block.
class Stream {
 public:
  Stream(const StreamBlockWeights& weights, const StreamInputs& inputs, const BlockArgs& args)
      : weights_(weights),
        inputs_(inputs),
        args_(args),
        eps_(args.config.norm_eps),
        ada_(weights.ada_table, inputs.ada_rows, inputs.row_of_token),
        cross_(weights.cross_table.narrow(0, 0, kCrossGateRow), inputs.cross_rows,
               inputs.row_of_token) {}

  // `attend` null: attention over this stream's tokens is always local (audio).
  at::Tensor self_attention(const at::Tensor& x, BlockSet SamplePerturbation::*kind,
                            AttendFunction attend) const {
    const at::Tensor normed =
        ops::rms_norm_modulate(x, eps_, ada_.modulation(kSelfRows + 1, kSelfRows));
    const Skip skip = skip_in_block(args_.perturbations, kind, args_.block_idx, x);
    at::Tensor heads_out;
    if (skip.all) {
      heads_out = values_only(normed);
    } else {
      ops::AttentionCall call = ops::project_qkv(weights_.self_attention, normed, normed, eps_);
      call.q_rope = inputs_.rope;
      call.k_rope = inputs_.rope;
      call.mask = inputs_.self_mask;
      call.keep = skip.keep;
      heads_out = attend != nullptr ? (args_.attention.*attend)(call) : ops::attend(call);
    }
    return x + ops::project_out(weights_.self_attention, heads_out) * ada_[kSelfRows + 2];
  }

  at::Tensor text_attention(const at::Tensor& x) const {
    const at::Tensor normed = ops::rms_norm(x, eps_);
    if (!args_.config.cross_attention_adaln) return x + attend_text(normed, inputs_.context);
    at::Tensor prompt = weights_.prompt_table.unsqueeze(0);  // [1, 2, dim]: shift, scale
    if (inputs_.prompt_rows.defined()) prompt = prompt + inputs_.prompt_rows;
    const at::Tensor context = ops::modulate(inputs_.context, prompt.select(1, 1).unsqueeze(1),
                                             prompt.select(1, 0).unsqueeze(1));
    const at::Tensor query = ops::modulate(normed, ada_[kTextRows + 1], ada_[kTextRows]);
    return x + attend_text(query, context) * ada_[kTextRows + 2];
  }

  // The stream's tokens as input of cross-modal attention; `rows` names the direction.
  at::Tensor cross_input(const at::Tensor& x, int64_t rows) const {
    return ops::rms_norm_modulate(x, eps_, cross_.modulation(rows, rows + 1));
  }

  // Gate of what comes from the other stream, [B or 1, 1, dim].
  at::Tensor cross_gate() const { return weights_.cross_table[kCrossGateRow] + inputs_.cross_gate; }

  at::Tensor feed_forward(const at::Tensor& x) const {
    const at::Tensor input =
        ops::rms_norm_modulate(x, eps_, ada_.modulation(kFeedForwardRows + 1, kFeedForwardRows));
    return x + ops::feed_forward(weights_.feed_forward, input) * ada_[kFeedForwardRows + 2];
  }

  const ops::RopeTable& cross_rope() const { return inputs_.cross_rope; }
  const at::Tensor& video_mask() const { return inputs_.video_mask; }

 private:
  at::Tensor values_only(const at::Tensor& normed) const {
    const auto& attention = weights_.self_attention;
    const at::Tensor values = ops::linear(normed, attention.to_v);
    if (!attention.gated()) return values;
    return ops::gate_heads(values, ops::linear(normed, attention.gate), attention.heads);
  }

  at::Tensor attend_text(const at::Tensor& query, const at::Tensor& context) const {
    ops::AttentionCall call = ops::project_qkv(weights_.text_attention, query, context, eps_);
    call.mask = inputs_.context_mask;
    return ops::project_out(weights_.text_attention, ops::attend(call));
  }

  const StreamBlockWeights& weights_;
  const StreamInputs& inputs_;
  const BlockArgs& args_;
  double eps_;
  ModulationRows ada_;
  ModulationRows cross_;
};

struct CrossAttention {
  const ops::AttentionWeights& weights;
  int64_t rows;
  BlockSet SamplePerturbation::*kind;
  AttendFunction attend;  // null: local
};

// to + gate * attention(queries of `to`, keys and values of `from`).
at::Tensor cross_modal(const CrossAttention& cross, const BlockArgs& args, const Stream& to,
                       const Stream& from, const at::Tensor& x_to, const at::Tensor& x_to_before,
                       const at::Tensor& x_from_before) {
  const Skip skip = skip_in_block(args.perturbations, cross.kind, args.block_idx, x_to);
  if (skip.all) return x_to;
  ops::AttentionCall call =
      ops::project_qkv(cross.weights, to.cross_input(x_to_before, cross.rows),
                       from.cross_input(x_from_before, cross.rows), args.config.norm_eps);
  call.q_rope = to.cross_rope();
  call.k_rope = from.cross_rope();
  call.mask = to.video_mask();
  const at::Tensor heads_out =
      cross.attend != nullptr ? (args.attention.*cross.attend)(call) : ops::attend(call);
  at::Tensor update = ops::project_out(cross.weights, heads_out) * to.cross_gate();
  if (skip.keep.defined()) update = update * skip.keep;
  return x_to + update;
}

}  // namespace

void run_block(const BlockWeights& weights, const BlockArgs& args, const StreamInputs* video,
               const StreamInputs* audio, at::Tensor& x_video, at::Tensor& x_audio) {
  std::optional<Stream> video_stream;
  std::optional<Stream> audio_stream;
  if (video != nullptr) video_stream.emplace(weights.video, *video, args);
  if (audio != nullptr) audio_stream.emplace(weights.audio, *audio, args);
  const bool run_video = video != nullptr && video->enabled;
  const bool run_audio = audio != nullptr && audio->enabled;

  if (run_video) {
    x_video = video_stream->self_attention(x_video, &SamplePerturbation::video_self,
                                           &VideoTokenAttention::self_attention);
    x_video = video_stream->text_attention(x_video);
  }
  if (run_audio) {
    x_audio = audio_stream->self_attention(x_audio, &SamplePerturbation::audio_self, nullptr);
    x_audio = audio_stream->text_attention(x_audio);
  }
  if (video_stream && audio_stream) {
    // Both directions read the tokens as they were before either: the order must not matter.
    const at::Tensor video_before = x_video;
    const at::Tensor audio_before = x_audio;
    if (run_video) {
      x_video = cross_modal(
          {weights.audio_to_video, kAudioToVideoRows, &SamplePerturbation::audio_to_video, nullptr},
          args, *video_stream, *audio_stream, x_video, video_before, audio_before);
    }
    if (run_audio) {
      x_audio =
          cross_modal({weights.video_to_audio, kVideoToAudioRows,
                       &SamplePerturbation::video_to_audio, &VideoTokenAttention::video_to_audio},
                      args, *audio_stream, *video_stream, x_audio, audio_before, video_before);
    }
  }
  if (run_video) x_video = video_stream->feed_forward(x_video);
  if (run_audio) x_audio = audio_stream->feed_forward(x_audio);
}

}  // namespace flotilla::transformer
