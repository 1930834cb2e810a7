// Attention against its formula, written out in float64.
#include "ops/attention.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/compare.h"

namespace flotilla {
namespace {

ops::AttentionCall random_call(int64_t batch, int64_t queries, int64_t keys, int64_t heads,
                               int64_t head_dim) {
  ops::AttentionCall call;
  const int64_t width = heads * head_dim;
  call.q = at::randn({batch, queries, width});
  call.k = at::randn({batch, keys, width});
  call.v = at::randn({batch, keys, width});
  call.q_norm = at::rand({width}) + 0.5;
  call.k_norm = at::rand({width}) + 0.5;
  call.heads = heads;
  return call;
}

at::Tensor written_out(const ops::AttentionCall& call) {
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight) {
    const at::Tensor wide = x.to(at::kDouble);
    return wide / (wide.square().mean(-1, true) + call.norm_eps).sqrt() * weight.to(at::kDouble);
  };
  const auto heads = [&](const at::Tensor& x) {
    return x.unflatten(-1, {call.heads, -1}).transpose(1, 2);
  };
  const at::Tensor q = heads(norm(call.q, call.q_norm));
  const at::Tensor k = heads(norm(call.k, call.k_norm));
  at::Tensor scores =
      at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(-1)));
  if (call.mask.defined()) scores = scores + call.mask.to(at::kDouble);
  at::Tensor out = at::matmul(scores.softmax(-1), heads(call.v.to(at::kDouble)));
  if (call.gate_logits.defined()) {
    out = out * (2.0 * at::sigmoid(call.gate_logits.to(at::kDouble))).transpose(1, 2).unsqueeze(-1);
  }
  return out.transpose(1, 2).flatten(-2);
}

TEST(AttentionTest, EqualsTheFormula) {
  ops::AttentionCall call = random_call(2, 5, 7, 3, 8);
  call.gate_logits = at::randn({2, 5, 3});
  // float32 over 24 channels and 7 keys: a few ulps of values of order 1.
  const at::Tensor gated = ops::gate_heads(ops::attend(call), call.gate_logits, call.heads).plain;
  EXPECT_TRUE(test::all_close(gated, written_out(call), 1e-5));
}

TEST(AttentionTest, MaskHidesKeys) {
  ops::AttentionCall call = random_call(1, 4, 6, 2, 8);
  call.mask = at::zeros({1, 1, 4, 6});
  call.mask.narrow(3, 4, 2).fill_(-INFINITY);
  ops::AttentionCall shorter = call;
  shorter.k = call.k.narrow(1, 0, 4);
  shorter.v = call.v.narrow(1, 0, 4);
  shorter.mask = at::Tensor();
  EXPECT_TRUE(test::all_close(ops::attend(call), ops::attend(shorter), 1e-6));
}

TEST(AttentionTest, KeepBlendsWithTheValues) {
  ops::AttentionCall call = random_call(2, 5, 5, 2, 8);
  const at::Tensor full = ops::attend(call);
  call.keep = at::tensor({1.0F, 0.0F}).view({2, 1, 1});
  const at::Tensor blended = ops::attend(call);
  EXPECT_TRUE(test::same_bytes(blended[0], full[0]));
  EXPECT_TRUE(test::same_bytes(blended[1], call.v[1]));
}

}  // namespace
}  // namespace flotilla
