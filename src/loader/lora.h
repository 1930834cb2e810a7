// LoRAs: pairs of thin matrices A [rank, in] and B [out, rank] that change a linear layer's weight
// to W + strength * alpha / rank * B A. Several are summed and added in one pass, in the rounding
// of the LTX-2 reference (ltx_core/loader/fuse_loras.py). Everything that can be wrong with a file
// is found from headers, before a weight changes.
//
//   const LoraFile file(Checkpoint::open(path))     the file's own faults
//   const LoraSet set(arena, prefix, loras)         against the model's names and shapes
//   set.fuse_rows(name, begin, rows, ...)           some rows of one weight
// Next: fused_share.h, which fuses sets into a share of an arena and out again.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "loader/checkpoint.h"
#include "loader/weight_arena.h"

namespace flotilla::loader {

// The factors of one linear layer.
struct LoraModule {
  std::string a;  // names in the file
  std::string b;
  int64_t rank = 0;
  int64_t in = 0;
  int64_t out = 0;
  double scale = 1.0;  // alpha / rank; 1 when the file has no alpha
};

class LoraFile {
 public:
  // Names: <prefix><module><suffix>, with the prefixes of ComfyUI ("diffusion_model."), diffusers
  // ("transformer.") and PEFT ("base_model.model."), or none; suffixes ".lora_A.weight" and
  // ".lora_B.weight" (PEFT: ".lora_A.default.weight"), ".lora_down.weight" and ".lora_up.weight",
  // ".alpha" (one number). Reads headers and alphas only. Errors (ErrorKind::input), one for all
  // faults: a tensor that is none of these, a factor without its partner, shapes or ranks that do
  // not fit together, a module that comes twice, a file without factors.
  explicit LoraFile(std::shared_ptr<const Checkpoint> checkpoint);

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  // By the module's name without prefix: "transformer_blocks.0.attn1.to_q".
  const std::map<std::string, LoraModule>& modules() const { return modules_; }

 private:
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::map<std::string, LoraModule> modules_;
};

struct LoraWithStrength {
  std::shared_ptr<const LoraFile> file;
  double strength = 1.0;
};

// Modules of one LoRA. `skipped`: the model's file has the weight, but another part than the
// model's arena uses it (the text connectors).
struct LoraCounts {
  int64_t applied = 0;
  int64_t skipped = 0;
};

// Type in which products are made, summed and added to the weight. bfloat16 is the rule of the
// reference for weights of any type, float32 ones included.
enum class LoraAggregation { bfloat16, float32 };

// Factors of LoRA files on the host, in their stored type. They can be read long before they are
// used, so that a bad file is found before any work; sets that have a file in common share them.
class LoraFactors {
 public:
  struct Pair {
    std::shared_ptr<const LoraFile> file;  // owns the module that is the key
    at::Tensor a;                          // [rank, in]
    at::Tensor b;                          // rows [begin, end) of [out, rank]
    int64_t begin = 0;
    int64_t end = 0;
  };
  // Reads all of A and rows [begin, end) of B, unless they are there. Errors (ErrorKind::input):
  // the file cannot be read; a factor holds NaN or infinity.
  const Pair& read(const std::shared_ptr<const LoraFile>& file, const LoraModule& module,
                   int64_t begin, int64_t end);
  void clear() { pairs_.clear(); }
  // Lets go of the factors of all other files.
  void keep_only(std::span<const LoraWithStrength> loras);

 private:
  std::map<const LoraModule*, Pair> pairs_;
};

// Several LoRAs, checked against one model.
class LoraSet {
 public:
  LoraSet() = default;  // none
  // `prefix` stands before the LoRAs' module names in the arena ("model.diffusion_model."). Works
  // on names and shapes alone, so also on an arena that is not loaded or on at::kMeta. A LoRA of
  // strength 0 is checked and changes nothing. Errors (ErrorKind::input), one a file: modules that
  // the model does not have, factors of another width than the weight.
  LoraSet(const WeightArena& arena, std::string_view prefix,
          std::span<const LoraWithStrength> loras);
  // Sets of the same identity make the same weights from the same ones: the same files, unchanged
  // since they were opened, at the same strengths in the same order.
  const std::string& identity() const { return identity_; }

  // In the order of the LoRAs.
  const std::vector<LoraCounts>& counts() const { return counts_; }
  // Full names of the weights that change.
  std::vector<std::string> weight_names() const;
  bool changes(const std::string& name) const { return products_.contains(name); }

  // Reads into `factors` what fuse_rows() needs for rows [begin, end) of the weight; nothing for a
  // weight that no LoRA changes. Errors: see LoraFactors.
  void read_factors(const std::string& name, int64_t begin, int64_t end,
                    LoraFactors& factors) const;
  // Fuses into `rows` [n, in], on any device, which holds rows [begin, begin + n) of the clean
  // weight `name`, in fp32, bf16 or e4m3 (dequantised, summed, rounded to nearest). A row's bytes
  // do not depend on the share that it is fused in. Does nothing for a weight that no LoRA changes.
  // Reads what `factors` lacks; errors as there.
  void fuse_rows(const std::string& name, int64_t begin, const at::Tensor& rows,
                 LoraFactors& factors,
                 LoraAggregation aggregation = LoraAggregation::bfloat16) const;

 private:
  struct Product {
    std::shared_ptr<const LoraFile> file;
    const LoraModule* module;
    double factor;  // strength * scale
  };
  std::map<std::string, std::vector<Product>> products_;  // by weight
  std::vector<LoraCounts> counts_;
  std::string identity_;
};

}  // namespace flotilla::loader
