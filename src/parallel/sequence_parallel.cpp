#include "parallel/sequence_parallel.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "comm/agreement.h"
#include "comm/exchange_layout.h"

namespace flotilla::parallel {
namespace {

using transformer::BlockSet;
using transformer::Modality;
using transformer::Perturbations;

at::Tensor to_tokens(const at::Tensor& heads) {  // [B, H, T, D] -> [B, T, H*D]
  return heads.transpose(1, 2).flatten(-2);
}

at::Tensor to_heads(const at::Tensor& tokens, int64_t heads) {  // [B, T, h*D] -> [B, h, T, D]
  return tokens.unflatten(-1, {heads, -1}).transpose(1, 2);
}

// Whether the rotation is one that an exchange may do on the way.
bool can_fuse(const ops::RopeTable& table) {
  return table.defined() && table.type == ops::RopeType::split;
}

// FNV-1a over numbers.
class Digest {
 public:
  void add(int64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
      state_ = (state_ ^ (static_cast<uint64_t>(value) >> shift & 0xFF)) * 0x100000001B3ULL;
    }
  }
  void add(const BlockSet& set) {
    add(set.all ? 1 : 0);
    add(static_cast<int64_t>(set.blocks.size()));
    for (const int64_t block : set.blocks) add(block);
  }
  void add(const Modality* modality) {
    add(modality == nullptr ? 0 : 1);
    if (modality == nullptr) return;
    for (const int64_t size : modality->latent.sizes()) add(size);
    add(modality->enabled ? 1 : 0);
  }
  int64_t value() const { return static_cast<int64_t>(state_ >> 1); }

 private:
  uint64_t state_ = 0xCBF29CE484222325ULL;
};

// What decides which calls of the exchange a pass makes, and with what sizes: blocks that skip
// attention for all samples make none. Ranks that disagreed would read each other's wrong calls.
int64_t digest_of_work(const Modality* video, const Modality* audio,
                       const Perturbations& perturbations) {
  Digest digest;
  digest.add(video);
  digest.add(audio);
  for (const auto& sample : perturbations) {
    digest.add(sample.video_self);
    digest.add(sample.audio_self);
    digest.add(sample.audio_to_video);
    digest.add(sample.video_to_audio);
  }
  return digest.value();
}

}  // namespace

comm::HeadExchangeOptions video_exchange_options(const transformer::TransformerConfig& config,
                                                 const SequenceSizes& sizes) {
  const auto& video = config.video;
  const auto& audio = config.audio;
  const auto element_bytes = static_cast<int64_t>(at::elementSize(sizes.dtype));
  comm::HeadExchangeOptions options;
  options.device = sizes.device;
  options.transport = sizes.transport;
  options.heads = video.heads;
  options.max_tokens = sizes.max_tokens;
  options.max_batch = sizes.max_batch;
  options.token_bytes = std::max(3 * video.dim(), 2 * audio.dim()) * element_bytes;
  options.max_gather_bytes = sizes.max_batch * sizes.audio_tokens * audio.dim() * element_bytes;
  options.timeout_s = sizes.timeout_s;
  options.first_timeout_s = std::max(options.first_timeout_s, sizes.timeout_s);
  return options;
}

comm::HeadExchangeOptions text_exchange_options(const transformer::TransformerConfig& config,
                                                const SequenceSizes& sizes) {
  comm::HeadExchangeOptions options = video_exchange_options(config, sizes);
  // Keys and values of both streams.
  options.token_bytes = 2 * (config.video.dim() + config.audio.dim()) *
                        static_cast<int64_t>(at::elementSize(sizes.dtype));
  options.max_tokens = sizes.text_tokens;
  options.max_gather_bytes = sizes.max_batch * sizes.text_tokens * options.token_bytes;
  return options;
}

void SequenceExchange::set_token_count(int64_t video_tokens, int64_t batch) {
  video->set_token_count(video_tokens, batch);
  // Room and time limits; how many tokens a text has comes with it.
  if (text) text->set_token_count(1, batch);
}

comm::ExchangeStats SequenceExchange::stats() const {
  comm::ExchangeStats sum = video->stats();
  if (!text) return sum;
  const comm::ExchangeStats more = text->stats();
  return {sum.calls + more.calls, sum.bytes + more.bytes, sum.seconds + more.seconds,
          sum.wait_seconds + more.wait_seconds};
}

void SequenceExchange::close() {
  video->close();
  if (text) text->close();
}

SequenceExchange make_sequence_exchange(comm::Communicator& communicator,
                                        const transformer::TransformerConfig& config,
                                        const SequenceSizes& sizes) {
  // The cross-modal attention has the audio heads.
  comm::agreed(communicator,
               [&] { comm::check_heads(config.audio.heads, communicator.world_size()); });
  SequenceExchange exchange;
  exchange.video = comm::make_head_exchange(communicator, video_exchange_options(config, sizes));
  if (sizes.text_tokens > 0 && communicator.world_size() > 1)
    exchange.text = comm::make_head_exchange(communicator, text_exchange_options(config, sizes));
  return exchange;
}

at::Tensor SequenceParallelAttention::own_heads(const at::Tensor& all) const {
  const int64_t count = all.size(1) / exchange_.world_size();
  return all.narrow(1, exchange_.rank() * count, count);
}

at::Tensor SequenceParallelAttention::mask_of_own_heads(const ops::AttentionCall& call) const {
  const bool by_head = call.mask.defined() && call.mask.dim() == 4 && call.mask.size(1) > 1;
  return by_head ? own_heads(call.mask) : call.mask;
}

std::vector<at::Tensor> SequenceParallelAttention::exchange_qkv(
    const ops::AttentionCall& call) const {
  if (can_fuse(call.q_rope) && can_fuse(call.k_rope)) {
    const std::array raw = {comm::RawHeads{call.q, call.q_norm, call.q_rope.cos, call.q_rope.sin},
                            comm::RawHeads{call.k, call.k_norm, call.k_rope.cos, call.k_rope.sin},
                            comm::RawHeads{call.v, {}, {}, {}}};
    if (auto heads = exchange_.exchange_raw(raw, call.heads, call.norm_eps)) return *heads;
  }
  return exchange_.exchange(
      std::array{to_tokens(ops::query_heads(call)), to_tokens(ops::key_heads(call)), call.v});
}

std::vector<at::Tensor> SequenceParallelAttention::exchange_kv(
    const ops::AttentionCall& call) const {
  if (can_fuse(call.k_rope)) {
    const std::array raw = {comm::RawHeads{call.k, call.k_norm, call.k_rope.cos, call.k_rope.sin},
                            comm::RawHeads{call.v, {}, {}, {}}};
    if (auto heads = exchange_.exchange_raw(raw, call.heads, call.norm_eps)) return *heads;
  }
  return exchange_.exchange(std::array{to_tokens(ops::key_heads(call)), call.v});
}

at::Tensor SequenceParallelAttention::self_attention(const ops::AttentionCall& call) const {
  const int64_t heads = call.heads / exchange_.world_size();
  const auto whole = exchange_qkv(call);
  const at::Tensor own = ops::dot_product(to_heads(whole[0], heads), to_heads(whole[1], heads),
                                          to_heads(whole[2], heads), mask_of_own_heads(call));
  return ops::blend_with_values(call, exchange_.exchange_back(own));  // [B, S, H*D]
}

at::Tensor SequenceParallelAttention::video_to_audio(const ops::AttentionCall& call) const {
  FLOTILLA_ASSERT(!call.keep.defined());  // it would mix video values into audio tokens
  const int64_t heads = call.heads / exchange_.world_size();
  const auto whole = exchange_kv(call);
  const at::Tensor own =
      ops::dot_product(own_heads(ops::query_heads(call)), to_heads(whole[0], heads),
                       to_heads(whole[1], heads), mask_of_own_heads(call));
  return ops::blend_with_values(call, exchange_.all_gather_heads(own));  // [B, Ta, H*D]
}

std::vector<ops::KeysAndValues> SequenceParallelAttention::project_text(
    std::span<const transformer::TextProjection> layers) const {
  if (text_ == nullptr) return VideoTokenAttention::project_text(layers);
  std::vector<at::Tensor> own;
  for (const auto& [weights, context] : layers) {
    const int64_t heads = weights.heads / text_->world_size();
    const auto [k, v] = ops::project_kv(weights, context, {text_->rank() * heads, heads});
    own.insert(own.end(), {k, v});
  }
  const auto whole = text_->all_gather_heads(own);
  std::vector<ops::KeysAndValues> projected;
  for (size_t i = 0; i < layers.size(); ++i) projected.push_back({whole[2 * i], whole[2 * i + 1]});
  return projected;
}

SequenceParallelVelocityModel::SequenceParallelVelocityModel(
    const transformer::Transformer& model, const transformer::TokenPositions& positions,
    at::ScalarType dtype, comm::Communicator& communicator, SequenceExchange& exchange,
    transformer::BlockGraphs* graphs)
    : model_(model),
      communicator_(communicator),
      exchange_(exchange),
      num_tokens_(positions.video.defined() ? positions.video.size(2) : 0),
      // Of the whole clip, then cut: each rank has the bytes that one rank would have.
      rope_(make_rope_tables(model.config(), positions.video, positions.audio, dtype)),
      attention_(exchange),
      graphs_(graphs) {
  FLOTILLA_ASSERT(exchange.video->world_size() == communicator.world_size() &&
                  exchange.video->rank() == communicator.rank());
  rope_.video = own_rope(rope_.video);
  rope_.video_cross = own_rope(rope_.video_cross);
}

at::Tensor SequenceParallelVelocityModel::own_tokens(const at::Tensor& whole, int64_t axis) const {
  if (!whole.defined()) return whole;
  const comm::TokenShards shards{num_tokens_, communicator_.world_size()};
  const int64_t rank = communicator_.rank();
  FLOTILLA_ASSERT(whole.size(axis) == num_tokens_);
  const at::Tensor own = whole.narrow(axis, shards.begin(rank), shards.count(rank));
  std::vector<int64_t> padding = own.sizes().vec();
  padding[static_cast<size_t>(axis)] = shards.padded_local() - shards.count(rank);
  return at::cat({own, at::zeros(padding, own.options())}, axis);  // [.., S, ..], a copy
}

ops::RopeTable SequenceParallelVelocityModel::own_rope(const ops::RopeTable& whole) const {
  if (!whole.defined()) return whole;
  const int64_t axis = whole.type == ops::RopeType::split ? 2 : 1;
  return {own_tokens(whole.cos, axis), own_tokens(whole.sin, axis), whole.type};
}

Modality SequenceParallelVelocityModel::own_video(const Modality& video) const {
  Modality own = video;
  own.latent = own_tokens(video.latent);
  // The distinct values stay those of the whole clip: AdaLN has the same rows on all ranks.
  own.timesteps.index = own_tokens(video.timesteps.index);
  own.keyframes_mask = own_tokens(video.keyframes_mask);
  return own;
}

at::Tensor SequenceParallelVelocityModel::gather_tokens(const at::Tensor& own) const {
  const at::Tensor all = communicator_.all_gather(own.contiguous());  // [N, B, S, C]
  return all.transpose(0, 1).flatten(1, 2).narrow(1, 0, num_tokens_).contiguous();
}

transformer::Velocity SequenceParallelVelocityModel::forward(
    const Modality* video, const Modality* audio, const Perturbations& perturbations) const {
  comm::agree_on(communicator_, "the work of a pass (its digest)",
                 digest_of_work(video, audio, perturbations));
  if (video == nullptr) return model_.forward(nullptr, audio, rope_, perturbations);
  FLOTILLA_ASSERT(video->latent.size(1) == num_tokens_);
  exchange_.set_token_count(num_tokens_, video->latent.size(0));
  // One rank holds all tokens; the model's own attention spares it the copies.
  if (communicator_.world_size() == 1)
    return model_.forward(video, audio, rope_, perturbations, local_attention_, graphs_);

  const Modality own = own_video(*video);
  transformer::Velocity velocity =
      model_.forward(&own, audio, rope_, perturbations, attention_, graphs_);
  velocity.video = gather_tokens(velocity.video);
  return velocity;
}

}  // namespace flotilla::parallel
