#include "ops/cuda_launch.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "base/error.h"
#include "kernels/gate_heads.h"
#include "kernels/qk_norm_rope.h"
#include "kernels/quantise_rows.h"
#include "kernels/residual_norm_modulate.h"

namespace flotilla::ops::cuda {
namespace {

kernels::DataType data_type(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return kernels::DataType::float32;
    case at::kBFloat16:
      return kernels::DataType::bfloat16;
    default:
      fail(ErrorKind::internal,
           std::string("no CUDA kernel for ") + c10::toString(x.scalar_type()));
  }
}

// Rows of `row_stride` elements: a view of a table of several rows a timestep may be given.
int64_t row_stride(const at::Tensor& rows, const at::Tensor& like) {
  FLOTILLA_ASSERT(rows.dim() == 2 && rows.stride(1) == 1 && rows.size(1) == like.size(-1));
  FLOTILLA_ASSERT(rows.scalar_type() == like.scalar_type() && rows.device() == like.device());
  return rows.stride(0);
}

// Tokens that share a row where no index says which.
int64_t tokens_per_row(const at::Tensor& rows, const at::Tensor& x) {
  FLOTILLA_ASSERT(rows.size(0) == 1 || rows.size(0) == x.size(0));
  return rows.size(0) == 1 ? x.size(0) * x.size(1) : x.size(1);
}

void launched(cudaError_t code) { C10_CUDA_CHECK(code); }

QuantisedRows empty_rows(const at::Tensor& like) {
  return {at::empty(like.sizes(), like.options().dtype(at::kFloat8_e4m3fn)),
          at::empty({like.numel() / like.size(-1), 1}, like.options().dtype(at::kFloat)),
          like.scalar_type()};
}

uint8_t* bytes_of(const at::Tensor& values) {
  return static_cast<uint8_t*>(values.mutable_data_ptr());
}

QuantisedRows launch_quantise(const at::Tensor& x, kernels::QuantiseRowsArgs args) {
  const at::Tensor input = x.contiguous();
  QuantisedRows rows = empty_rows(input);
  args.x = input.const_data_ptr();
  args.values = bytes_of(rows.values);
  args.scales = rows.scales.mutable_data_ptr<float>();
  args.rows = rows.scales.size(0);
  args.dim = input.size(-1);
  args.dtype = data_type(input);
  launched(kernels::launch_quantise_rows(args, c10::cuda::getCurrentCUDAStream()));
  return rows;
}

// Adds a modulation of tokens like `x` to the launch; gives its output. The index, where there is
// one, must be kept by the caller until the launch.
LayerInput add_modulation(kernels::ResidualNormModulateArgs& args, const at::Tensor& x,
                          const TokenModulation& modulation, at::Tensor& index) {
  auto& out = args.modulation[args.modulations++];
  out.scale = modulation.scale.const_data_ptr();
  out.shift = modulation.shift.const_data_ptr();
  out.row_stride = row_stride(modulation.scale, x);
  FLOTILLA_ASSERT(row_stride(modulation.shift, x) == out.row_stride);
  LayerInput result;
  if (modulation.forms.plain) {
    result.plain = at::empty_like(x);
    out.out = result.plain.mutable_data_ptr();
  }
  if (modulation.forms.quantised) {
    result.quantised = empty_rows(x);
    out.values = bytes_of(result.quantised.values);
    out.scales = result.quantised.scales.mutable_data_ptr<float>();
  }
  if (modulation.row_of_token.defined()) {
    index = modulation.row_of_token.contiguous();
    args.row_of_token = index.const_data_ptr<int64_t>();
  } else {
    args.tokens_per_row = tokens_per_row(modulation.scale, x);
  }
  return result;
}

}  // namespace

bool has_kernels_for(const at::Tensor& x) {
  return x.is_cuda() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

Residual residual_norm_modulate(const at::Tensor& x, const at::Tensor& update,
                                const TokenGate& gate, double eps,
                                std::span<const TokenModulation> modulations) {
  FLOTILLA_ASSERT(x.dim() == 3 && modulations.size() <= kernels::kMaxModulations);
  const at::Tensor input = x.contiguous();
  const at::Tensor added = update.defined() ? update.contiguous() : update;
  kernels::ResidualNormModulateArgs args;
  args.x = input.const_data_ptr();
  args.tokens = x.size(0) * x.size(1);
  args.dim = x.size(2);
  args.eps = static_cast<float>(eps);
  args.dtype = data_type(x);
  at::Tensor index;
  Residual residual;
  residual.x = input;
  if (added.defined()) {
    FLOTILLA_ASSERT(added.sizes() == x.sizes() && added.scalar_type() == x.scalar_type());
    residual.x = at::empty_like(input);
    args.update = added.const_data_ptr();
    args.sum = residual.x.mutable_data_ptr();
  }
  if (gate.rows.defined()) {
    args.gate = gate.rows.const_data_ptr();
    args.gate_row_stride = row_stride(gate.rows, x);
    args.gate_is_indexed = gate.row_of_token.defined();
    if (args.gate_is_indexed) {
      index = gate.row_of_token.contiguous();
      args.row_of_token = index.const_data_ptr<int64_t>();
    } else {
      args.gate_tokens_per_row = tokens_per_row(gate.rows, x);
    }
  }
  for (const TokenModulation& modulation : modulations)
    residual.modulated.push_back(add_modulation(args, input, modulation, index));
  launched(kernels::launch_residual_norm_modulate(args, c10::cuda::getCurrentCUDAStream()));
  return residual;
}

LayerInput modulate(const at::Tensor& x, const TokenModulation& modulation) {
  FLOTILLA_ASSERT(x.dim() == 3);
  const at::Tensor input = x.contiguous();
  kernels::ResidualNormModulateArgs args;
  args.x = input.const_data_ptr();
  args.tokens = x.size(0) * x.size(1);
  args.dim = x.size(2);
  args.normed = false;
  args.dtype = data_type(x);
  at::Tensor index;
  LayerInput out = add_modulation(args, input, modulation, index);
  launched(kernels::launch_residual_norm_modulate(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

at::Tensor gate_heads(const at::Tensor& heads_out, const at::Tensor& logits) {
  const at::Tensor input = heads_out.contiguous();
  const at::Tensor gates = logits.contiguous();
  FLOTILLA_ASSERT(gates.scalar_type() == input.scalar_type());
  const at::Tensor out = at::empty_like(input);
  kernels::GateHeadsArgs args;
  args.heads_out = input.const_data_ptr();
  args.logits = gates.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.heads = gates.size(-1);
  args.tokens = gates.numel() / args.heads;
  args.head_dim = input.size(-1) / args.heads;
  args.dtype = data_type(input);
  launched(kernels::launch_gate_heads(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

QuantisedRows quantise_rows(const at::Tensor& x) { return launch_quantise(x, {}); }

QuantisedRows gelu_and_quantise(const at::Tensor& x) {
  kernels::QuantiseRowsArgs args;
  args.function = kernels::RowFunction::gelu;
  return launch_quantise(x, args);
}

QuantisedRows gate_and_quantise(const at::Tensor& heads_out, const at::Tensor& logits) {
  const at::Tensor gates = logits.contiguous();
  FLOTILLA_ASSERT(gates.scalar_type() == heads_out.scalar_type() &&
                  heads_out.numel() / heads_out.size(-1) == gates.numel() / gates.size(-1));
  kernels::QuantiseRowsArgs args;
  args.function = kernels::RowFunction::gate_heads;
  args.gate_logits = gates.const_data_ptr();
  args.heads = gates.size(-1);
  return launch_quantise(heads_out, args);
}

std::vector<at::Tensor> norm_rope(std::span<const NormRopeInput> inputs, double eps, int64_t heads,
                                  const RopeTable& rope) {
  FLOTILLA_ASSERT(!inputs.empty() && inputs.size() <= kernels::kMaxNormRopeParts);
  FLOTILLA_ASSERT(!rope.defined() || rope.type == RopeType::split);
  const at::Tensor& x = inputs.front().x;
  std::vector<at::Tensor> kept, out;
  kernels::QkNormRopeArgs args;
  for (const NormRopeInput& input : inputs) {
    FLOTILLA_ASSERT(input.x.dim() == 3 && input.x.sizes() == x.sizes());
    kept.push_back(input.x.contiguous());
    out.push_back(at::empty_like(kept.back()));
    auto& part = args.part[args.parts++];
    part.from = kept.back().const_data_ptr();
    part.weight = input.weight.const_data_ptr();
    part.out = out.back().mutable_data_ptr();
    part.rotated = rope.defined();
  }
  if (rope.defined()) {
    FLOTILLA_ASSERT(rope.cos.is_contiguous() && rope.sin.is_contiguous() &&
                    rope.cos.scalar_type() == x.scalar_type() && rope.cos.size(2) == x.size(1));
    args.cos = rope.cos.const_data_ptr();
    args.sin = rope.sin.const_data_ptr();
    args.table_batches = rope.cos.size(0);
  }
  args.batches = x.size(0);
  args.tokens = args.live_tokens = x.size(1);
  args.heads = heads;
  args.head_dim = x.size(2) / heads;
  args.eps = static_cast<float>(eps);
  args.dtype = data_type(x);
  if (!kernels::can_qk_norm_rope(args)) return {};
  launched(kernels::launch_qk_norm_rope(args, c10::cuda::getCurrentCUDAStream()));
  return out;
}

}  // namespace flotilla::ops::cuda
