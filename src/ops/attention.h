// Multi-head attention: the input projections; q/k RMSNorm over all heads, RoPE, scaled dot
// product; the per-head gate and the output projection. AttentionCall is the border at which
// parallel/ puts the exchange of tokens and heads: everything that needs whole sequences happens
// behind it.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/layer_input.h"
#include "ops/linear.h"
#include "ops/rope.h"

namespace flotilla::ops {

struct AttentionCall {
  at::Tensor q;       // raw projections, [B, Tq, H*D]
  at::Tensor k;       // [B, Tk, H*D]
  at::Tensor v;       // [B, Tk, H*D]
  at::Tensor q_norm;  // RMSNorm weights [H*D]
  at::Tensor k_norm;
  double norm_eps = 1e-6;
  int64_t heads = 0;
  RopeTable q_rope;  // undefined: no rotation
  RopeTable k_rope;
  at::Tensor mask;  // additive, broadcasts to [B, H, Tq, Tk]; undefined: none
  at::Tensor keep;  // [B, 1, 1]: out * keep + v * (1 - keep); undefined: 1
  // [B, Tq, H]; undefined: no gate. Not read by attend() and its parts but by project_out(), so
  // that the gate and what the projection reads are one pass.
  at::Tensor gate_logits;
};

// Heads before the gate, [B, Tq, H*D].
at::Tensor attend(const AttentionCall& call);

// The parts of attend(), for implementations that exchange tokens and heads in between. Queries and
// keys are normalised over all heads and rotated here, so this comes before any exchange.
at::Tensor query_heads(const AttentionCall& call);  // [B, H, Tq, D]
at::Tensor key_heads(const AttentionCall& call);    // [B, H, Tk, D]
// Of whatever heads are here: q [B, h, Tq, D], k and v [B, h, Tk, D] -> [B, Tq, h*D]. `mask` as in
// AttentionCall.
at::Tensor dot_product(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& mask);
// `keep` on the outputs of all heads, [B, Tq, H*D].
at::Tensor blend_with_values(const AttentionCall& call, const at::Tensor& heads_out);

// heads_out [B, T, H*D] * 2 * sigmoid(logits [B, T, H]); as they are without logits.
LayerInput gate_heads(const at::Tensor& heads_out, const at::Tensor& gate_logits, int64_t heads,
                      InputForms forms = {});

// Weights of one attention layer in the layout of the official files (to_q, to_k, ..., q_norm).
struct AttentionWeights {
  int64_t heads = 0;
  LinearWeights to_q, to_k, to_v, to_out;
  at::Tensor q_norm, k_norm;
  LinearWeights gate;  // undefined: not gated

  bool gated() const { return gate.weight.defined(); }
};

struct AttentionShape {
  int64_t query_dim = 0;
  int64_t context_dim = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  bool gated = false;
};

// Binder is loader::WeightBinder; a template, because ops/ does not know loader/.
template <typename Binder>
AttentionWeights bind_attention(Binder binder, const AttentionShape& shape) {
  const int64_t inner = shape.heads * shape.head_dim;
  AttentionWeights weights;
  weights.heads = shape.heads;
  weights.to_q = bind_linear(binder, "to_q", shape.query_dim, inner);
  weights.to_k = bind_linear(binder, "to_k", shape.context_dim, inner);
  weights.to_v = bind_linear(binder, "to_v", shape.context_dim, inner);
  weights.to_out = bind_linear(binder, "to_out.0", inner, shape.query_dim);
  weights.q_norm = binder.take("q_norm.weight", {inner});
  weights.k_norm = binder.take("k_norm.weight", {inner});
  if (shape.gated)
    weights.gate = bind_linear(binder, "to_gate_logits", shape.query_dim, shape.heads);
  return weights;
}

// Forms in which the projections read the tokens of queries and the context.
InputForms query_forms(const AttentionWeights& weights);
InputForms context_forms(const AttentionWeights& weights);

// Projects x [B, Tq, query_dim] and context [B, Tk, context_dim]; RoPE, mask and keep are left to
// the caller.
AttentionCall project_qkv(const AttentionWeights& weights, const LayerInput& x,
                          const LayerInput& context, double norm_eps);
// The two halves of that, where the context is there before the queries: keys and values [B, Tk,
// H*D]; then the rest.
struct KeysAndValues {
  at::Tensor k;
  at::Tensor v;
};
KeysAndValues project_kv(const AttentionWeights& weights, const LayerInput& context);
// Of the heads [first, first + count) alone, [B, Tk, count*D].
struct HeadRange {
  int64_t first = 0;
  int64_t count = 0;
};
KeysAndValues project_kv(const AttentionWeights& weights, const LayerInput& context,
                         HeadRange heads);
AttentionCall project_q(const AttentionWeights& weights, const LayerInput& x, KeysAndValues kv,
                        double norm_eps);

// The gate (AttentionCall::gate_logits) and the output projection, [B, Tq, H*D] -> [B, Tq,
// query_dim]. When attention is skipped (STG), heads_out is the values.
at::Tensor project_out(const AttentionWeights& weights, const at::Tensor& heads_out,
                       const at::Tensor& gate_logits);

}  // namespace flotilla::ops
