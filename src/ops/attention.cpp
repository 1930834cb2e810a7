#include "ops/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "ops/cuda_launch.h"
#include "ops/norm.h"

namespace flotilla::ops {
namespace {

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// The kernel's matrix products, like any, depend in the last bits on how many queries there are.
at::Tensor attend_in_blocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& mask) {
  const bool mask_has_rows = mask.defined() && mask.dim() > 1 && mask.size(-2) > 1;
  const int64_t mask_rows_axis = mask_has_rows ? mask.dim() - 2 : 0;
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < q.size(2); begin += kRowBlock) {
    const int64_t size = std::min(kRowBlock, q.size(2) - begin);
    const at::Tensor block_mask =
        mask_has_rows ? row_block(mask, mask_rows_axis, begin, size) : mask;
    const at::Tensor part = at::scaled_dot_product_attention(row_block(q, 2, begin, size), k, v,
                                                             optional_of(block_mask));
    parts.push_back(part.narrow(2, 0, size));
  }
  return at::cat(parts, 2);  // [B, h, Tq, D]
}

// [B, T, H*D] -> [B, H, T, D].
at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, -1}).transpose(1, 2);
}

at::Tensor norm_rope(const at::Tensor& x, const at::Tensor& weight, const AttentionCall& call,
                     const RopeTable& rope) {
#ifdef FLOTILLA_CUDA
  if (cuda::has_kernels_for(x) && (!rope.defined() || rope.type == RopeType::split)) {
    const cuda::NormRopeInput input{x, weight};
    const auto heads = cuda::norm_rope({&input, 1}, call.norm_eps, call.heads, rope);
    if (!heads.empty()) return split_heads(heads.front(), call.heads);
  }
#endif
  return rotate_heads(rms_norm(x, call.norm_eps, weight), call.heads, rope);
}

struct QueriesAndKeys {
  at::Tensor q;  // [B, H, Tq, D]
  at::Tensor k;  // [B, H, Tk, D]
};

QueriesAndKeys norm_rope_both(const AttentionCall& call) {
#ifdef FLOTILLA_CUDA
  const bool alike = call.q.sizes() == call.k.sizes() && call.q_rope.defined() &&
                     call.q_rope.type == RopeType::split &&
                     call.q_rope.cos.is_same(call.k_rope.cos);
  if (alike && cuda::has_kernels_for(call.q)) {
    const std::array inputs = {cuda::NormRopeInput{call.q, call.q_norm},
                               cuda::NormRopeInput{call.k, call.k_norm}};
    const auto heads = cuda::norm_rope(inputs, call.norm_eps, call.heads, call.q_rope);
    if (!heads.empty())
      return {split_heads(heads[0], call.heads), split_heads(heads[1], call.heads)};
  }
#endif
  return {query_heads(call), key_heads(call)};
}

// Few queries and many keys, as where sound attends to video: flash spreads the keys over the
// device, cuDNN does not: about twice as fast for 126 queries on 24,576 keys on an H200.
bool wants_flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& mask) {
  constexpr int64_t kManyKeys = 16;
  return q.is_cuda() && !mask.defined() && q.scalar_type() == at::kBFloat16 && q.size(3) % 8 == 0 &&
         q.size(2) * kManyKeys <= k.size(2) && at::globalContext().userEnabledFlashSDP() &&
         at::globalContext().userEnabledCuDNNSDP();
}

}  // namespace

LayerInput gate_heads(const at::Tensor& heads_out, const at::Tensor& gate_logits, int64_t heads,
                      InputForms forms) {
  if (!gate_logits.defined()) return make_layer_input(heads_out, forms);
#ifdef FLOTILLA_CUDA
  if (cuda::has_kernels_for(heads_out)) {
    if (forms.plain || !forms.quantised)
      return make_layer_input(cuda::gate_heads(heads_out, gate_logits), forms);
    LayerInput gated;
    gated.quantised = cuda::gate_and_quantise(heads_out, gate_logits);
    return gated;
  }
#endif
  const at::Tensor gates = 2.0 * by_rows(gate_logits, at::sigmoid);  // [B, T, H]
  return make_layer_input((heads_out.unflatten(-1, {heads, -1}) * gates.unsqueeze(-1)).flatten(-2),
                          forms);
}

at::Tensor query_heads(const AttentionCall& call) {
  return norm_rope(call.q, call.q_norm, call, call.q_rope);
}

at::Tensor key_heads(const AttentionCall& call) {
  return norm_rope(call.k, call.k_norm, call, call.k_rope);
}

at::Tensor dot_product(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& mask) {
  at::Tensor out;
  if (FixedRowBlocks::active()) {
    out = attend_in_blocks(q, k, v, mask);
  } else if (wants_flash(q, k, mask)) {
    out = std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v));
  } else {
    out = at::scaled_dot_product_attention(q, k, v, optional_of(mask));
  }
  return out.transpose(1, 2).flatten(-2);
}

at::Tensor blend_with_values(const AttentionCall& call, const at::Tensor& heads_out) {
  return call.keep.defined() ? heads_out * call.keep + call.v * (1 - call.keep) : heads_out;
}

at::Tensor attend(const AttentionCall& call) {
  const at::Tensor v = split_heads(call.v, call.heads);  // [B, H, Tk, D]
  const auto [q, k] = norm_rope_both(call);
  return blend_with_values(call, dot_product(q, k, v, call.mask));
}

InputForms query_forms(const AttentionWeights& weights) {
  return forms_read_by({&weights.to_q, &weights.gate});
}

InputForms context_forms(const AttentionWeights& weights) {
  return forms_read_by({&weights.to_k, &weights.to_v});
}

KeysAndValues project_kv(const AttentionWeights& weights, const LayerInput& context) {
  return {linear(context, weights.to_k), linear(context, weights.to_v)};
}

KeysAndValues project_kv(const AttentionWeights& weights, const LayerInput& context,
                         HeadRange heads) {
  const int64_t head_dim = weights.to_k.weight.size(0) / weights.heads;
  const auto own_rows = [&](const at::Tensor& whole) {
    return whole.defined() ? whole.narrow(0, heads.first * head_dim, heads.count * head_dim)
                           : whole;
  };
  const auto project = [&](const LinearWeights& layer) {
    return linear(context, LinearWeights{own_rows(layer.weight), own_rows(layer.bias),
                                         own_rows(layer.row_scales)});
  };
  return {project(weights.to_k), project(weights.to_v)};
}

AttentionCall project_q(const AttentionWeights& weights, const LayerInput& x, KeysAndValues kv,
                        double norm_eps) {
  AttentionCall call;
  call.q = linear(x, weights.to_q);
  call.k = std::move(kv.k);
  call.v = std::move(kv.v);
  call.q_norm = weights.q_norm;
  call.k_norm = weights.k_norm;
  call.norm_eps = norm_eps;
  call.heads = weights.heads;
  if (weights.gated()) call.gate_logits = linear(x, weights.gate);
  return call;
}

AttentionCall project_qkv(const AttentionWeights& weights, const LayerInput& x,
                          const LayerInput& context, double norm_eps) {
  return project_q(weights, x, project_kv(weights, context), norm_eps);
}

at::Tensor project_out(const AttentionWeights& weights, const at::Tensor& heads_out,
                       const at::Tensor& gate_logits) {
  return linear(gate_heads(heads_out, gate_logits, weights.heads, forms_read_by({&weights.to_out})),
                weights.to_out);
}

}  // namespace flotilla::ops
