// Tokens in the forms in which linear layers read them: as they are, or as rows of e4m3 for 8-bit
// products. Whoever makes tokens asks which forms their readers take and makes just these, once for
// all readers; on CUDA within the kernel that makes the tokens (norm.h, attention.h, gelu() here).
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include "ops/fp8_linear.h"
#include "ops/linear.h"

namespace flotilla::ops {

struct InputForms {
  bool plain = true;
  bool quantised = false;
};
inline InputForms operator|(InputForms a, InputForms b) {
  return {a.plain || b.plain, a.quantised || b.quantised};
}
// What these layers read between them; layers without a weight are left out. With FixedRowBlocks
// always the plain form, which is quantised block by block.
InputForms forms_read_by(std::initializer_list<const LinearWeights*> layers);

struct LayerInput {
  LayerInput() = default;
  LayerInput(at::Tensor tokens) : plain(std::move(tokens)) {}  // NOLINT: tokens are an input too

  at::Tensor plain;         // [..., D]
  QuantisedRows quantised;  // of the same shape; either may be undefined
};

LayerInput make_layer_input(const at::Tensor& tokens, InputForms forms);

// The 8-bit form where the layer multiplies such and it is there, else the plain one.
at::Tensor linear(const LayerInput& x, const LinearWeights& layer);

// GELU in its tanh approximation, element by element.
LayerInput gelu(const at::Tensor& x, InputForms forms = {});

}  // namespace flotilla::ops
