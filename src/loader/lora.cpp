#include "loader/lora.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "loader/fault_list.h"
#include "loader/finite.h"

namespace flotilla::loader {
namespace {

// Products are made in blocks of rows that start at multiples of this, whatever share of a weight
// is asked for: a matrix product rounds differently for another number of rows. The size bounds the
// scratch memory and keeps GPUs busy.
constexpr int64_t kRowBlock = 1024;

constexpr std::string_view kPrefixes[] = {"model.diffusion_model.", "diffusion_model.",
                                          "base_model.model.", "transformer."};

enum Role : size_t { kA, kB, kAlpha, kNumRoles };
struct Suffix {
  std::string_view text;
  Role role;
};
constexpr Suffix kSuffixes[] = {
    {".lora_A.weight", kA},
    {".lora_B.weight", kB},
    {".lora_A.default.weight", kA},
    {".lora_B.default.weight", kB},
    {".lora_down.weight", kA},
    {".lora_up.weight", kB},
    {".alpha", kAlpha},
};

struct ModuleRole {
  std::string module;
  Role role;
};

std::optional<ModuleRole> parse_name(std::string_view name) {
  for (const auto prefix : kPrefixes) {
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      break;
    }
  }
  for (const auto& [text, role] : kSuffixes) {
    if (name.size() > text.size() && name.ends_with(text))
      return ModuleRole{std::string(name.substr(0, name.size() - text.size())), role};
  }
  return std::nullopt;
}

// Names in the file of one module's tensors, by role; empty: absent.
using Parts = std::array<std::string, kNumRoles>;

std::map<std::string, Parts> group_by_module(const Checkpoint& file, FaultList& faults) {
  std::map<std::string, Parts> modules;
  for (const auto& [name, info] : file.tensors()) {
    const auto parsed = parse_name(name);
    if (!parsed || !is_weight_dtype(info.dtype)) {
      faults.add("not a LoRA tensor", fmt::format("{} {} {}", excerpt(name, 200),
                                                  dtype_name(info.dtype), shape_text(info.shape)));
      continue;
    }
    std::string& slot = modules[parsed->module][parsed->role];
    if (!slot.empty()) faults.add("twice under two names", fmt::format("{} and {}", slot, name));
    slot = name;
  }
  return modules;
}

// alpha / rank. One element, of shape [] or [1].
double read_scale(const Checkpoint& file, const std::string& alpha, int64_t rank,
                  FaultList& faults) {
  const TensorInfo& info = file.tensors().at(alpha);
  if (info.numel() != 1) {
    faults.add("alpha is not one number", fmt::format("{} {}", alpha, shape_text(info.shape)));
    return 1.0;
  }
  const double value = file.read(alpha).to(at::kDouble).item<double>();
  if (!std::isfinite(value))
    faults.add("alpha is not finite", fmt::format("{} = {}", alpha, value));
  return value / static_cast<double>(rank);
}

// Nothing when the parts do not make a pair; then `faults` says why.
std::optional<LoraModule> pair_up(const Checkpoint& file, const Parts& parts, FaultList& faults) {
  const auto& [a, b, alpha] = parts;
  if (a.empty() && b.empty()) {
    faults.add("alpha without A and B", alpha);
    return std::nullopt;
  }
  if (a.empty() || b.empty()) {
    faults.add(b.empty() ? "A without B" : "B without A", b.empty() ? a : b);
    return std::nullopt;
  }
  const auto& a_shape = file.tensors().at(a).shape;
  const auto& b_shape = file.tensors().at(b).shape;
  if (a_shape.size() != 2 || b_shape.size() != 2 || a_shape[0] != b_shape[1] || a_shape[0] < 1) {
    faults.add("A [rank, in] and B [out, rank] do not fit together",
               fmt::format("{} {}, {} {}", a, shape_text(a_shape), b, shape_text(b_shape)));
    return std::nullopt;
  }
  LoraModule module{
      .a = a, .b = b, .rank = a_shape[0], .in = a_shape[1], .out = b_shape[0], .scale = 1.0};
  if (!alpha.empty()) module.scale = read_scale(file, alpha, module.rank, faults);
  return module;
}

// `values`, read from `factor`.
at::Tensor checked(const Checkpoint& file, const std::string& factor, at::Tensor values) {
  check_finite(values, factor, file.path());
  return values;
}

// The blocks that rows [begin, end) of `num_rows` lie in.
std::pair<int64_t, int64_t> whole_blocks(int64_t begin, int64_t end, int64_t num_rows) {
  return {begin / kRowBlock * kRowBlock,
          std::min((end + kRowBlock - 1) / kRowBlock * kRowBlock, num_rows)};
}

// A product on its way into a block of rows.
struct Term {
  at::Tensor a;  // [rank, in]
  at::Tensor b;  // [rows of some blocks, rank], on the host
  double factor;
};

// Sum of the products for `num_rows` rows from row `begin` of the terms' B on: [num_rows, in].
at::Tensor sum_of(const std::vector<Term>& terms, int64_t begin, int64_t num_rows) {
  at::Tensor sum;
  for (const auto& [a, all_b, factor] : terms) {
    const at::Tensor b = all_b.narrow(0, begin, num_rows).to(a.options());
    // The rounding of the reference: the first product scales B before it multiplies, the others
    // are scaled while they are added.
    if (!sum.defined()) {
      sum = at::matmul(b * factor, a);
    } else {
      sum.addmm_(b, a, /*beta=*/1, /*alpha=*/factor);
    }
  }
  return sum;
}

at::ScalarType type_of(LoraAggregation aggregation) {
  return aggregation == LoraAggregation::bfloat16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace

LoraFile::LoraFile(std::shared_ptr<const Checkpoint> checkpoint)
    : checkpoint_(std::move(checkpoint)) {
  FaultList faults;
  for (const auto& [name, parts] : group_by_module(*checkpoint_, faults)) {
    if (auto module = pair_up(*checkpoint_, parts, faults)) modules_.emplace(name, *module);
  }
  const std::string path = checkpoint_->path().string();
  faults.throw_if_any(fmt::format("\"{}\" is not a LoRA that can be used", path));
  if (modules_.empty()) fail(ErrorKind::input, fmt::format("\"{}\" holds no LoRA factors", path));
}

const LoraFactors::Pair& LoraFactors::read(const std::shared_ptr<const LoraFile>& file,
                                           const LoraModule& module, int64_t begin, int64_t end) {
  Pair& pair = pairs_[&module];
  if (pair.b.defined() && pair.begin <= begin && end <= pair.end) return pair;
  const Checkpoint& source = file->checkpoint();
  pair = {.file = file,
          .a = checked(source, module.a, source.read(module.a)),
          .b = checked(source, module.b, source.read_rows(module.b, begin, end)),
          .begin = begin,
          .end = end};
  return pair;
}

void LoraFactors::keep_only(std::span<const LoraWithStrength> loras) {
  std::erase_if(pairs_, [&](const auto& entry) {
    return std::none_of(loras.begin(), loras.end(),
                        [&](const auto& lora) { return lora.file == entry.second.file; });
  });
}

LoraSet::LoraSet(const WeightArena& arena, std::string_view prefix,
                 std::span<const LoraWithStrength> loras) {
  for (const auto& [file, strength] : loras) {
    identity_ += fmt::format("{} * {}\n", strength, file->checkpoint().identity());
    FaultList faults;
    LoraCounts& counts = counts_.emplace_back();
    for (const auto& [name, module] : file->modules()) {
      const std::string weight = fmt::format("{}{}.weight", prefix, name);
      const auto view = arena.views().find(weight);
      if (view == arena.views().end()) {
        if (arena.checkpoint().has(weight)) {
          ++counts.skipped;
        } else {
          faults.add("hits nothing in the model", module.a);
        }
        continue;
      }
      if (view->second.sizes() != at::IntArrayRef({module.out, module.in})) {
        faults.add("made for a weight of another shape",
                   fmt::format("{}: the LoRA changes [{}, {}], the model's weight is {}", name,
                               module.out, module.in, shape_text(view->second.sizes().vec())));
        continue;
      }
      ++counts.applied;
      if (strength != 0.0) products_[weight].push_back({file, &module, strength * module.scale});
    }
    faults.throw_if_any(fmt::format("the LoRA \"{}\" does not fit the model \"{}\"",
                                    file->checkpoint().path().string(),
                                    arena.checkpoint().path().string()));
  }
}

std::vector<std::string> LoraSet::weight_names() const {
  std::vector<std::string> names;
  for (const auto& [name, products] : products_) names.push_back(name);
  return names;
}

void LoraSet::read_factors(const std::string& name, int64_t begin, int64_t end,
                           LoraFactors& factors) const {
  const auto found = products_.find(name);
  if (found == products_.end()) return;
  for (const auto& [file, module, factor] : found->second) {
    const auto [from, to] = whole_blocks(begin, end, module->out);
    factors.read(file, *module, from, to);
  }
}

void LoraSet::fuse_rows(const std::string& name, int64_t begin, const at::Tensor& rows,
                        LoraFactors& factors, LoraAggregation aggregation) const {
  const auto found = products_.find(name);
  if (found == products_.end()) return;
  const LoraModule& layer = *found->second.front().module;
  const int64_t end = begin + rows.size(0);
  FLOTILLA_ASSERT(begin >= 0 && end <= layer.out && rows.size(1) == layer.in);
  const auto options = rows.options().dtype(type_of(aggregation));
  const auto [from, to] = whole_blocks(begin, end, layer.out);
  std::vector<Term> terms;
  for (const auto& [file, module, factor] : found->second) {
    const auto& pair = factors.read(file, *module, from, to);
    terms.push_back({pair.a.to(options), pair.b.narrow(0, from - pair.begin, to - from), factor});
  }
  for (int64_t block = from; block < to; block += kRowBlock) {
    const int64_t block_rows = std::min(kRowBlock, to - block);
    const int64_t first = std::max(begin, block);
    const int64_t count = std::min(end, block + block_rows) - first;
    const at::Tensor target = rows.narrow(0, first - begin, count);
    at::Tensor sum = sum_of(terms, block - from, block_rows).narrow(0, first - block, count);
    // A float32 weight joins unrounded; e4m3 has no arithmetic of its own.
    sum.add_(target.scalar_type() == at::kFloat ? target : target.to(options));
    target.copy_(sum);
  }
}

}  // namespace flotilla::loader
