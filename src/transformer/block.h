// One block of the audio-video transformer: self-attention, text attention, cross-modal attention
// in both directions, feed-forward; each modulated by AdaLN rows that depend on a token's timestep.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "gpu/side_stream.h"
#include "ops/attention.h"
#include "transformer/config.h"
#include "transformer/perturbation.h"
#include "transformer/weights.h"

namespace flotilla::transformer {

// The two attentions that read all video tokens, and what is the same on every rank. This is the
// border for sequence parallelism: a rank that holds a part of the tokens supplies its own
// implementation. Calls are made in the same order on all ranks; an implementation may be
// collective. A result may be memory that the next call writes to: it is read at once.
struct TextProjection {
  const ops::AttentionWeights& weights;
  ops::LayerInput context;  // [B, S, context dim]
};

class VideoTokenAttention {
 public:
  virtual ~VideoTokenAttention() = default;
  // Queries, keys and values are video tokens.
  virtual at::Tensor self_attention(const ops::AttentionCall& call) const = 0;
  // Queries are audio tokens, keys and values video tokens.
  virtual at::Tensor video_to_audio(const ops::AttentionCall& call) const = 0;
  // Keys and values of the text for these layers, one of each stream that is there; called once a
  // block. On a stream of its own on GPUs, so in no order with the calls above. The results are
  // read before the next call.
  virtual std::vector<ops::KeysAndValues> project_text(
      std::span<const TextProjection> layers) const;
  // Whether the calls are work on the current stream alone, for CUDA graphs.
  virtual bool can_be_captured() const { return false; }
};

// All video tokens are here.
class LocalVideoTokenAttention final : public VideoTokenAttention {
 public:
  at::Tensor self_attention(const ops::AttentionCall& call) const override {
    return ops::attend(call);
  }
  at::Tensor video_to_audio(const ops::AttentionCall& call) const override {
    return ops::attend(call);
  }
  bool can_be_captured() const override { return true; }
};

// What the blocks read of one stream besides its tokens; the same for all blocks of a pass.
struct StreamInputs {
  at::Tensor context;       // [B, S, dim]
  at::Tensor context_mask;  // additive, [B, 1, 1, S]; undefined: none
  at::Tensor self_mask;     // additive, [B, 1, T, T] or broadcastable; undefined: none
  at::Tensor video_mask;  // additive, [B, 1, Ta, Tv] or broadcastable, audio only; undefined: none
  ops::RopeTable rope;
  ops::RopeTable cross_rope;
  at::Tensor row_of_token;  // int64 [B, T]; undefined: one row a sample
  at::Tensor ada_rows;      // [U, 6 or 9, dim]
  at::Tensor prompt_rows;   // [B, 2, dim]: shift, scale of the text; undefined: table only
  at::Tensor cross_rows;    // [U, 4, dim]: scale, shift (a2v), scale, shift (v2a)
  at::Tensor cross_gate;    // [B or 1, 1, dim]
  bool enabled = true;      // false: the stream's tokens are read by the other one but not changed
};

// What runs beside the video where a GPU has room: audio, which has few tokens, and the projections
// of the text, which do not wait for anything. In place by default.
struct Branches {
  Branches() = default;
  explicit Branches(at::Device device) : audio(device), text(device) {}
  gpu::SideStream audio;
  gpu::SideStream text;
};

// A block's tables with the rows of the pass added: what its modulations and gates are.
struct StreamRows {
  at::Tensor ada;         // [U, 6 or 9, dim]
  at::Tensor prompt;      // [B or 1, 2, dim]; undefined without cross-attention AdaLN
  at::Tensor cross;       // [U, 4, dim]
  at::Tensor cross_gate;  // [B or 1, dim]
};
enum class StreamKind { video, audio };
// Of all these blocks at once: one by one, these additions are small kernels that take longer to
// launch than to run.
std::vector<StreamRows> rows_of_blocks(const TransformerConfig& config,
                                       std::span<const BlockWeights> blocks, StreamKind stream,
                                       const StreamInputs& inputs);

struct BlockArgs {
  const TransformerConfig& config;
  const VideoTokenAttention& attention;
  const Perturbations& perturbations;
  int64_t block_idx = 0;
  const Branches& beside_video;
  const StreamRows* video_rows = nullptr;  // of this block; null with an absent stream
  const StreamRows* audio_rows = nullptr;
};

// x_video [B, Tv, video dim] and x_audio [B, Ta, audio dim] are replaced by the block's output.
// Either stream may be absent (null inputs, undefined tokens).
void run_block(const BlockWeights& weights, const BlockArgs& args, const StreamInputs* video,
               const StreamInputs* audio, at::Tensor& x_video, at::Tensor& x_audio);

}  // namespace flotilla::transformer
