#include "text/gemma_layer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "ops/gemma_layer.h"

namespace flotilla::text {
namespace {

// [B, T, heads * head_dim] -> [B, heads, T, head_dim].
at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, -1}).transpose(1, 2);
}

at::Tensor self_attention(const GemmaConfig& config, const GemmaLayerWeights& weights,
                          const at::Tensor& x, const GemmaView& view, KeyValueCache* cache) {
  const auto turned = [&](const at::Tensor& heads, int64_t count, const at::Tensor& norm) {
    return ops::gemma_norm_rotate(heads, count, norm, config.rms_norm_eps, view.rotation.cos,
                                  view.rotation.sin);
  };
  const at::Tensor q = turned(at::linear(x, weights.q_proj), config.num_heads, weights.q_norm);
  KeyValueCache::Seen seen = {
      turned(at::linear(x, weights.k_proj), config.num_kv_heads, weights.k_norm),
      split_heads(at::linear(x, weights.v_proj), config.num_kv_heads)};
  if (cache != nullptr) seen = cache->append(seen.keys, seen.values);
  const auto mask = view.mask.defined() ? std::optional(view.mask) : std::nullopt;
  const bool is_causal = !mask && seen.keys.size(2) == q.size(2);
  const at::Tensor out =
      at::scaled_dot_product_attention(q, seen.keys, seen.values, mask, /*dropout_p=*/0.0,
                                       is_causal, 1.0 / std::sqrt(config.query_pre_attn_scalar),
                                       /*enable_gqa=*/config.num_heads != config.num_kv_heads);
  return at::linear(out.transpose(1, 2).flatten(-2), weights.o_proj);  // [B, T, D]
}

at::Tensor feed_forward(const GemmaLayerWeights& weights, const at::Tensor& x) {
  const at::Tensor gate = at::linear(x, weights.gate_proj);
  return at::linear(ops::gelu_product(gate, at::linear(x, weights.up_proj)), weights.down_proj);
}

}  // namespace

GemmaLayerWeights bind_gemma_layer(const GemmaConfig& config, loader::WeightBinder layer) {
  const int64_t width = config.hidden_size;
  const int64_t hidden = config.intermediate_size;
  const int64_t q_width = config.num_heads * config.head_dim;
  const int64_t kv_width = config.num_kv_heads * config.head_dim;
  GemmaLayerWeights weights;
  weights.input_norm = layer.take("input_layernorm.weight", {width});
  weights.post_attention_norm = layer.take("post_attention_layernorm.weight", {width});
  weights.pre_feed_forward_norm = layer.take("pre_feedforward_layernorm.weight", {width});
  weights.post_feed_forward_norm = layer.take("post_feedforward_layernorm.weight", {width});
  weights.q_proj = layer.take("self_attn.q_proj.weight", {q_width, width});
  weights.k_proj = layer.take("self_attn.k_proj.weight", {kv_width, width});
  weights.v_proj = layer.take("self_attn.v_proj.weight", {kv_width, width});
  weights.o_proj = layer.take("self_attn.o_proj.weight", {width, q_width});
  weights.q_norm = layer.take("self_attn.q_norm.weight", {config.head_dim});
  weights.k_norm = layer.take("self_attn.k_norm.weight", {config.head_dim});
  weights.gate_proj = layer.take("mlp.gate_proj.weight", {hidden, width});
  weights.up_proj = layer.take("mlp.up_proj.weight", {hidden, width});
  weights.down_proj = layer.take("mlp.down_proj.weight", {width, hidden});
  return weights;
}

GemmaRotation make_gemma_rotation(const GemmaRope& rope, int64_t head_dim, int64_t first,
                                  int64_t count, const at::TensorOptions& options) {
  const auto floats = options.dtype(at::kFloat);
  const at::Tensor exponents = at::arange(0, head_dim, 2, floats) / head_dim;
  const at::Tensor frequencies = 1.0 / at::pow(rope.theta, exponents) / rope.factor;
  const at::Tensor positions = at::arange(first, first + count, floats);
  const at::Tensor half = positions.unsqueeze(1) * frequencies;  // [T, head_dim / 2]
  const at::Tensor angles = at::cat({half, half}, -1);           // [T, head_dim]
  return {angles.cos().to(options.dtype()), angles.sin().to(options.dtype())};
}

KeyValueCache::KeyValueCache(const GemmaConfig& config, AttentionSpan span, int64_t capacity,
                             const at::TensorOptions& options)
    : keys_(at::empty({1, config.num_kv_heads, capacity, config.head_dim}, options)),
      values_(at::empty_like(keys_)),
      window_(span == AttentionSpan::full ? capacity : config.sliding_window) {}

KeyValueCache::Seen KeyValueCache::append(const at::Tensor& keys, const at::Tensor& values) {
  const int64_t count = keys.size(2);
  FLOTILLA_ASSERT(length_ + count <= keys_.size(2) && (length_ == 0 || count == 1));
  keys_.narrow(2, length_, count).copy_(keys);
  values_.narrow(2, length_, count).copy_(values);
  length_ += count;
  if (count > 1) return {keys, values};  // the first ones; the caller's mask has the window
  const int64_t shown = std::min(length_, window_);
  return {keys_.narrow(2, length_ - shown, shown), values_.narrow(2, length_ - shown, shown)};
}

GemmaHidden gemma_layer(const GemmaConfig& config, const GemmaLayerWeights& weights,
                        const GemmaHidden& hidden, const at::Tensor& next_norm,
                        const GemmaView& view, KeyValueCache* cache) {
  const double eps = config.rms_norm_eps;
  at::Tensor update = self_attention(config, weights, hidden.normed, view, cache);
  const auto middle = ops::gemma_add_norm(hidden.state, update, weights.post_attention_norm, eps,
                                          weights.pre_feed_forward_norm);
  update = feed_forward(weights, middle.normed);
  const auto end =
      ops::gemma_add_norm(middle.sum, update, weights.post_feed_forward_norm, eps, next_norm);
  return {end.sum, end.normed};
}

}  // namespace flotilla::text
