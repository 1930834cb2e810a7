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

LoraSet::LoraSet(const WeightArena& arena, std::string_view prefix,
                 std::span<const LoraWithStrength> loras) {
  for (const auto& [file, strength] : loras) {
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

at::Tensor LoraSet::sum_products(const std::vector<Product>& products,
                                 const std::vector<at::Tensor>& a, int64_t begin, int64_t end) {
  at::Tensor sum;
  for (size_t i = 0; i < products.size(); ++i) {
    const auto& [file, module, factor] = products[i];
    const Checkpoint& source = file->checkpoint();
    const at::Tensor b =
        checked(source, module->b, source.read_rows(module->b, begin, end)).to(a[i].options());
    // The rounding of the reference: the first product scales B before it multiplies, the others
    // are scaled while they are added.
    if (i == 0) {
      sum = at::matmul(b * factor, a[i]);
    } else {
      sum.addmm_(b, a[i], /*beta=*/1, /*alpha=*/factor);
    }
  }
  return sum;
}

void LoraSet::fuse_rows(const std::string& name, int64_t begin, const at::Tensor& rows,
                        LoraAggregation aggregation) const {
  const auto found = products_.find(name);
  if (found == products_.end()) return;
  const std::vector<Product>& products = found->second;
  const int64_t num_rows = products.front().module->out;
  const int64_t end = begin + rows.size(0);
  FLOTILLA_ASSERT(begin >= 0 && end <= num_rows && rows.size(1) == products.front().module->in);
  const auto options = rows.options().dtype(type_of(aggregation));
  std::vector<at::Tensor> a;
  for (const Product& product : products) {
    const Checkpoint& source = product.file->checkpoint();
    const std::string& factor = product.module->a;
    a.push_back(checked(source, factor, source.read(factor)).to(options));
  }

  for (int64_t block = begin / kRowBlock * kRowBlock; block < end; block += kRowBlock) {
    const int64_t block_end = std::min(block + kRowBlock, num_rows);
    const int64_t from = std::max(begin, block);
    const int64_t count = std::min(end, block_end) - from;
    const at::Tensor target = rows.narrow(0, from - begin, count);
    at::Tensor sum = sum_products(products, a, block, block_end).narrow(0, from - block, count);
    // A float32 weight joins unrounded; e4m3 has no arithmetic of its own.
    sum.add_(target.scalar_type() == at::kFloat ? target : target.to(options));
    target.copy_(sum);
  }
}

std::vector<LoraCounts> fuse_loras(WeightArena& arena, std::string_view prefix,
                                   std::span<const LoraWithStrength> loras,
                                   LoraAggregation aggregation) {
  const LoraSet set(arena, prefix, loras);
  arena.restore();
  try {
    for (const std::string& name : set.weight_names())
      set.fuse_rows(name, 0, arena.mutable_view(name), aggregation);
  } catch (...) {
    arena.restore();
    throw;
  }
  return set.counts();
}

}  // namespace flotilla::loader
