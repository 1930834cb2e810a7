// One contiguous allocation that holds the weights of one model, every weight a view into it.
//
//   auto arena = std::make_shared<WeightArena>(checkpoint, "vae.decoder.", at::kFloat, at::kCPU);
//   WeightBinder binder(*arena);
//   auto weights = bind_decoder(config, binder);   // names and shapes only
//   binder.finish();                               // the audit: missing, extra, mis-shaped
//   load(*arena);                                  // now the bytes: see LoadArena
//
// Several ranks read a share each and pass it on (parallel/shared_weights.h). The audit comes
// before the bytes, so a wrong file costs no time. On device at::kMeta nothing is allocated: the
// audit alone, for validation and dry runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "loader/checkpoint.h"
#include "loader/storage_policy.h"

namespace flotilla::loader {

// Whole rows (of dimension 0; a scalar is one row) of one weight: where they lie in the arena and
// in the file that holds the weight, in bytes. The two differ in size where the types differ.
struct ArenaPiece {
  std::string name;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t arena_begin = 0;
  int64_t arena_end = 0;
  int64_t file_begin = 0;
  int64_t file_end = 0;
};

// A part of the arena that one rank reads, keeps clean and changes.
struct ArenaShare {
  int64_t begin = 0;  // bytes of the arena, both multiples of 256
  int64_t end = 0;
  std::vector<ArenaPiece> pieces;  // in the order of the arena; between them is padding

  int64_t file_bytes() const;
};

class WeightArena {
 public:
  // Lays out every tensor of `checkpoint` whose name starts with one of `prefixes` (an empty prefix
  // takes all), at offsets of 256 bytes, in name order, in the types of `policy`.
  // Names whose prefix-less rest starts with one of `ignored` are left out on purpose.
  WeightArena(std::shared_ptr<const Checkpoint> checkpoint, std::vector<std::string> prefixes,
              StoragePolicy policy, at::Device device, std::vector<std::string> ignored = {});

  // Share `index` of `count`: equal numbers of bytes as far as whole rows allow. Cuts lie at
  // multiples of 256 bytes between rows; vectors, scalars and integer tensors stay whole. share(0,
  // 1) is the table of the whole arena.
  ArenaShare share(int index, int count) const;

  // Reads all bytes into the arena. Once. Errors (ErrorKind::input): a file that cannot be read, a
  // weight that holds NaN or infinity.
  void load();
  // The rows of a share alone; errors as load().
  void load_share(const ArenaShare& share) const;
  // Says that the other shares have come from elsewhere.
  void set_loaded() { loaded_ = true; }

  // The piece's rows, a view of the arena: [num_rows, ...].
  at::Tensor rows(const ArenaPiece& piece) const;
  // The piece's bytes, uint8: rows and their scales.
  at::Tensor bytes_of(const ArenaPiece& piece) const;
  // Their scales [num_rows], float32; undefined where the policy stores none.
  at::Tensor row_scales(const ArenaPiece& piece) const;
  // Reads the rows from the file, converting block by block.
  void read_rows(const ArenaPiece& piece) const;
  // All bytes, uint8 [bytes()].
  at::Tensor& storage() { return storage_; }

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const FileStorage& file_storage() const { return storage_of_; }
  const std::map<std::string, at::Tensor>& views() const { return views_; }
  // Scales [rows], float32, of the weights that have some (FileStorage::has_row_scales()).
  const std::map<std::string, at::Tensor>& row_scales() const { return row_scales_; }
  int64_t bytes() const { return bytes_; }
  bool loaded() const { return loaded_; }

 private:
  // A weight's place; its rows may be cut at multiples of `row_step`.
  struct Place {
    int64_t begin = 0;
    int64_t num_rows = 1;
    int64_t row_bytes = 0;
    int64_t row_step = 1;

    int64_t end() const { return begin + num_rows * row_bytes; }
  };
  static Place place_of(const TensorInfo& info, at::ScalarType stored_as, int64_t begin);
  // Where the arena may be cut that is nearest to `target`.
  int64_t cut_near(int64_t target) const;
  ArenaPiece piece_of(const std::string& name, const Place& place, int64_t begin,
                      int64_t end) const;

  std::shared_ptr<const Checkpoint> checkpoint_;
  FileStorage storage_of_;
  at::Tensor storage_;  // uint8, [bytes]
  std::map<std::string, at::Tensor> views_;
  std::map<std::string, at::Tensor> row_scales_;
  std::map<std::string, Place> places_;
  std::map<int64_t, std::string> name_at_;  // by Place::begin; weights without elements left out
  int64_t bytes_ = 0;
  bool loaded_ = false;
};

// How a model fills its arena: alone, or together with other ranks.
using LoadArena = std::function<void(WeightArena&)>;
inline void load_alone(WeightArena& arena) { arena.load(); }

// Hands out weights by full name and keeps account of them. Faults are collected, so that finish()
// tells all of them at once; a tensor that is missing comes back undefined.
class WeightBinder {
 public:
  explicit WeightBinder(const WeightArena& arena);
  // A binder for the names below `prefix`; shares the account.
  WeightBinder scope(std::string_view prefix) const;

  // The weight `name` (the scope's prefix in front), which must have this shape and, in the file, a
  // type of weights (is_weight_dtype(), or e4m3 under an 8-bit policy).
  at::Tensor take(std::string_view name, std::vector<int64_t> shape);
  // As take(), undefined when the file lacks it; for weights that a configuration flag does not
  // settle.
  at::Tensor take_optional(std::string_view name, std::vector<int64_t> shape);
  // The scales of a weight's rows; undefined where it has none.
  at::Tensor row_scales(std::string_view name) const;
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
