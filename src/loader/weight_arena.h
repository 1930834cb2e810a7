// One contiguous allocation that holds the weights of one model, every weight a view into it.
//
//   auto arena = std::make_shared<WeightArena>(checkpoint, "vae.decoder.", at::kFloat, at::kCPU);
//   WeightBinder binder(*arena);
//   auto weights = bind_decoder(config, binder);   // names and shapes only
//   binder.finish();                               // the audit: missing, extra, mis-shaped
//   arena->load();                                 // now the bytes
//
// The audit comes before the bytes, so a wrong file costs no time. On device at::kMeta nothing is
// allocated: the audit alone, for validation and dry runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "loader/checkpoint.h"

namespace flotilla::loader {

class WeightArena {
 public:
  // Lays out every tensor of `checkpoint` whose name starts with one of `prefixes` (an empty prefix
  // takes all), at offsets of 256 bytes, in name order, in `dtype` (integer tensors keep theirs).
  // Names whose prefix-less rest starts with one of `ignored` are left out on purpose.
  WeightArena(std::shared_ptr<const Checkpoint> checkpoint, std::vector<std::string> prefixes,
              at::ScalarType dtype, at::Device device, std::vector<std::string> ignored = {});

  // Reads all bytes into the arena. Once. Errors (ErrorKind::input): a file that cannot be read, a
  // weight that holds NaN or infinity.
  void load();
  // The view of a loaded weight, for changing its values; remembered until restore().
  const at::Tensor& mutable_view(const std::string& name);
  // Reads the changed weights from the file again, so that all weights are clean. When it throws
  // (ErrorKind::input), they still count as changed.
  void restore();

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const std::map<std::string, at::Tensor>& views() const { return views_; }
  int64_t bytes() const { return bytes_; }
  bool loaded() const { return loaded_; }

 private:
  void read_weight(const std::string& name) const;

  std::shared_ptr<const Checkpoint> checkpoint_;
  at::Tensor storage_;  // uint8, [bytes]
  std::map<std::string, at::Tensor> views_;
  std::set<std::string> changed_;
  int64_t bytes_ = 0;
  bool loaded_ = false;
};

// Hands out weights by full name and keeps account of them. Faults are collected, so that finish()
// tells all of them at once; a tensor that is missing comes back undefined.
class WeightBinder {
 public:
  explicit WeightBinder(const WeightArena& arena);
  // A binder for the names below `prefix`; shares the account.
  WeightBinder scope(std::string_view prefix) const;

  // The weight `name` (the scope's prefix in front), which must have this shape and, in the file, a
  // type of weights (is_weight_dtype()).
  at::Tensor take(std::string_view name, std::vector<int64_t> shape);
  // As take(), undefined when the file lacks it; for weights that a configuration flag does not
  // settle.
  at::Tensor take_optional(std::string_view name, std::vector<int64_t> shape);
  bool has(std::string_view name) const;
  // Says that `name`, if it is there, is known and not used.
  void ignore(std::string_view name);
  // Shape of a weight in the file; for sizes that no configuration entry gives.
  std::optional<std::vector<int64_t>> shape_of(std::string_view name) const;

  // Throws one ErrorKind::input that lists missing, extra, mis-shaped and mistyped names with
  // the file.
  // Call it once, on the binder that was made from the arena.
  void finish() const;

 private:
  struct Account;
  WeightBinder(std::shared_ptr<Account> account, std::string prefix);

  std::shared_ptr<Account> account_;
  std::string prefix_;
};

// A linear layer: weight [out, in], bias [out] or undefined.
struct Linear {
  at::Tensor weight;
  at::Tensor bias;
};
// Takes "<name>.weight" and, with `bias`, "<name>.bias".
Linear take_linear(WeightBinder& binder, std::string_view name, int64_t in, int64_t out,
                   bool bias = true);

}  // namespace flotilla::loader
