// Sequence parallelism (SP): each rank computes 1/N of the video tokens, and the result is that of
// one rank. Everything but two attentions works token by token; for these two, ranks exchange
// tokens for heads (comm/head_exchange.h), so that each sees the whole clip for 1/N of the heads.
// Audio is small and replicated. The text is the same on all ranks, so each projects 1/N of its
// heads for all. For the stages of a job, with `ranks` a comm::RankContext:
//
//   auto exchange = make_sequence_exchange(ranks.transformer(), model.config(), sizes);  // once
//   SequenceParallelVelocityModel stage(model, positions, dtype, ranks.transformer(), exchange);
//
// A group of ranks (guidance) passes the communicator that split() gave instead. Method: DeepSpeed
// Ulysses (arXiv 2309.14509).
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/head_exchange.h"
#include "transformer/velocity_model.h"

namespace flotilla::parallel {

// What the exchange must hold: the maximum over the stages that use it.
struct SequenceSizes {
  int64_t max_tokens = 0;    // sp.max_tokens; of a sample's video
  int64_t max_batch = 1;     // samples of one pass: those that guidance runs as one batch
  int64_t audio_tokens = 0;  // of a sample
  // Of a sample's context. 0: every rank projects the whole text for itself, as `reproducible:
  // world` wants it: a product of fewer columns may differ in the last bits.
  int64_t text_tokens = 0;
  at::ScalarType dtype = at::ScalarType::Float;  // of the computation
  at::Device device = at::kCPU;                  // with its index, if it is a GPU
  comm::ExchangeTransport transport = comm::ExchangeTransport::automatic;  // sp.transport
  double timeout_s = 120;  // sp.exchange_timeout_seconds
};

comm::HeadExchangeOptions video_exchange_options(const transformer::TransformerConfig& config,
                                                 const SequenceSizes& sizes);
// With text_tokens.
comm::HeadExchangeOptions text_exchange_options(const transformer::TransformerConfig& config,
                                                const SequenceSizes& sizes);

// Of one rank. The text's calls go their way beside the video's, on another stream.
struct SequenceExchange {
  std::unique_ptr<comm::HeadExchange> video;
  std::unique_ptr<comm::HeadExchange> text;  // null: the text is not shared out

  // See comm::HeadExchange; of both.
  void set_token_count(int64_t video_tokens, int64_t batch);
  comm::ExchangeStats stats() const;
  void close();
};

// Collective. `communicator` must outlive the result. Errors (agreed, ErrorKind::config):
// "heads (H) must be divisible by world_size (N)" with the rank counts that work; the plan asks
// comm::check_heads() before any work.
SequenceExchange make_sequence_exchange(comm::Communicator& communicator,
                                        const transformer::TransformerConfig& config,
                                        const SequenceSizes& sizes);

// The attentions over all video tokens, for a rank that holds its shard of them: [B, S, H*D] with
// S = ceil(T / N). Padding behind token T never reaches them. Masks are whole, [.., Tq, T] over the
// unpadded clip. Collective; the exchange's token count must be set. Where the weights have no
// gate, a result is the exchange's memory, to be read before the next call.
class SequenceParallelAttention final : public transformer::VideoTokenAttention {
 public:
  // `exchange` must outlive this object.
  explicit SequenceParallelAttention(const SequenceExchange& exchange)
      : exchange_(*exchange.video), text_(exchange.text.get()) {}

  // Three tensors go out (q, k, v), one comes back.
  at::Tensor self_attention(const ops::AttentionCall& call) const override;
  // Only k and v go out; each rank takes its heads of the queries, which all have, and the heads of
  // the result are gathered.
  at::Tensor video_to_audio(const ops::AttentionCall& call) const override;
  // This rank's heads are projected, and gathered in one call a block. With an odd number of blocks
  // replays of a graph use one slot twice in a row, but ranks meet in between, after each pass.
  std::vector<ops::KeysAndValues> project_text(
      std::span<const transformer::TextProjection> layers) const override;
  // Both attentions make two calls of the exchange, as graphs want it.
  bool can_be_captured() const override { return exchange_.can_be_captured(); }

 private:
  at::Tensor mask_of_own_heads(const ops::AttentionCall& call) const;
  // Queries, keys and values (or the last two) of own tokens -> of own heads, [B, T, H*D/N] each,
  // normalised and rotated on the way where the exchange can do that.
  std::vector<at::Tensor> exchange_qkv(const ops::AttentionCall& call) const;
  std::vector<at::Tensor> exchange_kv(const ops::AttentionCall& call) const;
  // A tensor of [B, H, T, D] with all heads -> this rank's, [B, H/N, T, D].
  at::Tensor own_heads(const at::Tensor& all) const;

  comm::HeadExchange& exchange_;
  comm::HeadExchange* text_;  // null: not shared out
};

class SequenceParallelVelocityModel final : public transformer::VelocityModel {
 public:
  // `model`, `communicator`, `exchange`, which was made with it, and `graphs` (null: none) must
  // outlive this object; `dtype` is that of the latents. Local.
  SequenceParallelVelocityModel(const transformer::Transformer& model,
                                const transformer::TokenPositions& positions, at::ScalarType dtype,
                                comm::Communicator& communicator, SequenceExchange& exchange,
                                transformer::BlockGraphs* graphs = nullptr);

  // Collective, also without video. Errors (agreed, before the model runs): ErrorKind::config,
  // "Total video token count (T) exceeds attention_manager max_tokens (M)", see
  // comm::check_token_count(); ErrorKind::internal, the ranks were given different work. Others
  // (ErrorKind::communication) are not agreed.
  transformer::Velocity forward(const transformer::Modality* video,
                                const transformer::Modality* audio,
                                const transformer::Perturbations& perturbations) const override;

 private:
  // [B, T, ...] of the whole clip -> this rank's [B, S, ...], zeros behind the last token.
  at::Tensor own_tokens(const at::Tensor& whole, int64_t axis = 1) const;
  ops::RopeTable own_rope(const ops::RopeTable& whole) const;
  transformer::Modality own_video(const transformer::Modality& video) const;
  // [B, S, C] of each rank -> [B, T, C].
  at::Tensor gather_tokens(const at::Tensor& own) const;

  const transformer::Transformer& model_;
  comm::Communicator& communicator_;
  SequenceExchange& exchange_;
  int64_t num_tokens_;            // T; 0 without video
  transformer::RopeTables rope_;  // of this rank's tokens; of all audio
  SequenceParallelAttention attention_;
  transformer::LocalVideoTokenAttention local_attention_;  // of a world of one rank
  transformer::BlockGraphs* graphs_;
};

}  // namespace flotilla::parallel
