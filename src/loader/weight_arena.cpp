#include "loader/weight_arena.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "loader/fault_list.h"
#include "loader/finite.h"

namespace flotilla::loader {
namespace {

// Every weight starts at a multiple of this, so that any vector width and any share of the arena is
// aligned.
constexpr int64_t kAlignment = 256;

constexpr std::string_view kWrongDtype = "of another type than F64, F32, F16 or BF16";

int64_t round_up(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

bool starts_with_any(std::string_view text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [text](const std::string& prefix) { return text.starts_with(prefix); });
}

}  // namespace

WeightArena::WeightArena(std::shared_ptr<const Checkpoint> checkpoint,
                         std::vector<std::string> prefixes, at::ScalarType dtype, at::Device device,
                         std::vector<std::string> ignored)
    : checkpoint_(std::move(checkpoint)) {
  struct Place {
    int64_t offset;
    int64_t bytes;
    at::ScalarType dtype;
    const TensorInfo* info;
  };
  std::map<std::string, Place> places;
  for (const auto& [name, info] : checkpoint_->tensors()) {
    const auto prefix = std::find_if(prefixes.begin(), prefixes.end(),
                                     [&](const std::string& p) { return name.starts_with(p); });
    if (prefix == prefixes.end() ||
        starts_with_any(std::string_view(name).substr(prefix->size()), ignored))
      continue;
    const at::ScalarType stored_as = at::isFloatingType(info.dtype) ? dtype : info.dtype;
    const int64_t bytes = info.numel() * static_cast<int64_t>(c10::elementSize(stored_as));
    places.emplace(name, Place{bytes_, bytes, stored_as, &info});
    bytes_ = round_up(bytes_ + bytes);
  }
  try {
    storage_ = at::empty({bytes_}, at::TensorOptions(at::kByte).device(device));
  } catch (const c10::Error&) {
    fail(ErrorKind::memory,
         fmt::format("the weights of \"{}\" need {} on {}, which cannot be allocated",
                     checkpoint_->path().string(), human_bytes(static_cast<double>(bytes_)),
                     device.str()));
  }
  for (const auto& [name, place] : places) {
    views_.emplace(
        name,
        storage_.narrow(0, place.offset, place.bytes).view(place.dtype).view(place.info->shape));
  }
}

void WeightArena::load() {
  FLOTILLA_ASSERT(!loaded_ && !storage_.is_meta());
  // In file order: the reads are sequential.
  std::vector<std::pair<int64_t, const std::string*>> order;
  for (const auto& [name, view] : views_)
    order.emplace_back(checkpoint_->tensors().at(name).begin, &name);
  std::sort(order.begin(), order.end());
  for (const auto& [offset, name] : order) read_weight(*name);
  loaded_ = true;
}

void WeightArena::read_weight(const std::string& name) const {
  const at::Tensor& view = views_.at(name);
  if (view.device().is_cpu()) {
    checkpoint_->read_into(name, view);
    check_finite(view, name, checkpoint_->path());
  } else {
    const at::Tensor values = checkpoint_->read(name);
    check_finite(values, name, checkpoint_->path());
    view.copy_(values);
  }
}

const at::Tensor& WeightArena::mutable_view(const std::string& name) {
  FLOTILLA_ASSERT(loaded_ && views_.contains(name));
  changed_.insert(name);
  return views_.at(name);
}

void WeightArena::restore() {
  FLOTILLA_ASSERT(loaded_);
  for (const auto& name : changed_) read_weight(name);
  changed_.clear();
}

struct WeightBinder::Account {
  const WeightArena* arena;
  std::set<std::string> taken;
  std::vector<std::string> missing;
  std::vector<std::string> misshaped;
  std::vector<std::string> mistyped;
};

WeightBinder::WeightBinder(const WeightArena& arena) : account_(std::make_shared<Account>()) {
  account_->arena = &arena;
}
WeightBinder::WeightBinder(std::shared_ptr<Account> account, std::string prefix)
    : account_(std::move(account)), prefix_(std::move(prefix)) {}

WeightBinder WeightBinder::scope(std::string_view prefix) const {
  return WeightBinder(account_, prefix_ + std::string(prefix));
}

bool WeightBinder::has(std::string_view name) const {
  return account_->arena->views().contains(prefix_ + std::string(name));
}

std::optional<std::vector<int64_t>> WeightBinder::shape_of(std::string_view name) const {
  const auto at = account_->arena->views().find(prefix_ + std::string(name));
  if (at == account_->arena->views().end()) return std::nullopt;
  return at->second.sizes().vec();
}

at::Tensor WeightBinder::take(std::string_view name, std::vector<int64_t> shape) {
  const std::string full = prefix_ + std::string(name);
  const auto at = account_->arena->views().find(full);
  if (at == account_->arena->views().end()) {
    account_->missing.push_back(fmt::format("{} {}", full, shape_text(shape)));
    return {};
  }
  account_->taken.insert(full);
  const at::ScalarType stored = account_->arena->checkpoint().tensors().at(full).dtype;
  if (!is_weight_dtype(stored)) {
    account_->mistyped.push_back(fmt::format("{} {}", full, dtype_name(stored)));
    return {};
  }
  if (at->second.sizes() != at::IntArrayRef(shape)) {
    account_->misshaped.push_back(fmt::format(
        "{} is {}, expected {}", full, shape_text(at->second.sizes().vec()), shape_text(shape)));
    return {};
  }
  return at->second;
}

at::Tensor WeightBinder::take_optional(std::string_view name, std::vector<int64_t> shape) {
  return has(name) ? take(name, std::move(shape)) : at::Tensor();
}

void WeightBinder::ignore(std::string_view name) {
  account_->taken.insert(prefix_ + std::string(name));
}

void WeightBinder::finish() const {
  FaultList faults;
  for (const auto& name : account_->missing) faults.add("missing", name);
  for (const auto& [name, view] : account_->arena->views()) {
    if (!account_->taken.contains(name)) faults.add("unexpected", name);
  }
  for (const auto& name : account_->misshaped) faults.add("of another shape", name);
  for (const auto& name : account_->mistyped) faults.add(kWrongDtype, name);
  faults.throw_if_any(fmt::format("\"{}\" does not hold the model that its configuration describes",
                                  account_->arena->checkpoint().path().string()));
}

Linear take_linear(WeightBinder& binder, std::string_view name, int64_t in, int64_t out,
                   bool bias) {
  Linear linear;
  linear.weight = binder.take(std::string(name) + ".weight", {out, in});
  if (bias) linear.bias = binder.take(std::string(name) + ".bias", {out});
  return linear;
}

}  // namespace flotilla::loader
