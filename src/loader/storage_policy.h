// In which types a model's weights lie in memory, whatever the types in their file. Under the 8-bit
// policies the linear layers of the transformer's blocks lie as e4m3 (half the bytes of bfloat16)
// and everything else as bfloat16:
//   fp8_cast       weights and biases rounded to e4m3 without scales; computed in bfloat16
//   fp8_scaled_mm  weights as e4m3 with a scale for each row; computed on 8-bit tensor cores
// Files may hold e4m3 themselves, with a scale beside each weight ("<weight>_scale") or bare.
// Source of the rules: ltx_core/quantization/{fp8_cast,fp8_scaled_mm}.py.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>

#include "loader/checkpoint.h"

namespace flotilla::loader {

enum class EightBit { none, cast, scaled };

struct StoragePolicy {
  // Every weight in this floating type.
  StoragePolicy(at::ScalarType all) : dtype(all) {}  // NOLINT: a plain type is a policy too
  static StoragePolicy fp8_cast() { return {at::kBFloat16, EightBit::cast}; }
  static StoragePolicy fp8_scaled_mm() { return {at::kBFloat16, EightBit::scaled}; }

  // As `precision` spells it.
  std::string_view name() const;

  at::ScalarType dtype;  // of what is not e4m3, and of the computation
  EightBit eight_bit = EightBit::none;

 private:
  StoragePolicy(at::ScalarType others, EightBit kind) : dtype(others), eight_bit(kind) {}
};

// Whether `tensor` (any prefix) is the weight or bias of a layer that the 8-bit policies quantise.
bool is_quantised_layer(std::string_view tensor);

// Rounds rows [n, in] of float32 to e4m3 `out` [n, in] and float32 `scales` [n]: the largest
// magnitude of each row becomes the largest of e4m3. Rows do not depend on each other.
void quantise_rows(const at::Tensor& rows, const at::Tensor& out, const at::Tensor& scales);

// The tensors of one file under one policy.
class FileStorage {
 public:
  FileStorage(std::shared_ptr<const Checkpoint> file, StoragePolicy policy);

  const StoragePolicy& policy() const { return policy_; }
  // Whether weights of the file may be of this type.
  bool accepts(at::ScalarType stored) const;
  // A scale is used up while its weight is read; it is no weight itself. Always false for plain
  // policies.
  bool is_scale(const std::string& name) const;
  // Type in memory; integer tensors keep theirs.
  at::ScalarType dtype_of(const std::string& name) const;
  // Whether a scale for each row lies beside the weight in memory.
  bool has_row_scales(const std::string& name) const;

  // The file's types against the policy, for tensors whose names start with `prefix`; reads no
  // weight. Errors (ErrorKind::input), with the policy that would fit: e4m3 under a plain policy;
  // e4m3 without scales under fp8_scaled_mm; scales that fit no weight, or not all of them.
  void check(std::string_view prefix) const;

  // Reads rows [begin, end) of a tensor (a number without dimensions is one row) into `out`
  // (contiguous, on the CPU, of dtype_of()) and, with has_row_scales(), their scales into `scales`
  // [end - begin], float32: weight = out * scales. A row's bytes do not depend on the others.
  // Errors (ErrorKind::input): not readable; a number that is not finite, or beyond the range of
  // e4m3 where it is stored so.
  void read_rows(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out,
                 const at::Tensor& scales = {}) const;

 private:
  // Name of the file's scale of an e4m3 tensor; "" without one.
  std::string scale_of(const std::string& name) const;
  // Rows of the scale [n, 1], or all of it when it is one number.
  at::Tensor read_scale(const std::string& scale, int64_t begin, int64_t end) const;

  std::shared_ptr<const Checkpoint> file_;
  StoragePolicy policy_;
  bool file_is_quantised_ = false;
};

}  // namespace flotilla::loader
