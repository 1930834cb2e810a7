#include "loader/weight_arena.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "loader/arena_reader.h"
#include "loader/fault_list.h"
#include "loader/finite.h"

namespace flotilla::loader {
namespace {

// Every weight starts at a multiple of this, so that any vector width and any share of the arena is
// aligned.
constexpr int64_t kAlignment = 256;

constexpr std::string_view kWrongDtype = "of another type than F64, F32, F16 or BF16";

int64_t round_up(int64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

// One float32 a row.
int64_t scale_bytes(const TensorInfo& weight) { return 4 * weight.shape.at(0); }

bool starts_with_any(std::string_view text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [text](const std::string& prefix) { return text.starts_with(prefix); });
}

}  // namespace

int64_t ArenaShare::file_bytes() const {
  return std::accumulate(
      pieces.begin(), pieces.end(), int64_t{0},
      [](int64_t sum, const ArenaPiece& piece) { return sum + piece.file_end - piece.file_begin; });
}

WeightArena::WeightArena(std::shared_ptr<const Checkpoint> checkpoint,
                         std::vector<std::string> prefixes, StoragePolicy policy, at::Device device,
                         std::vector<std::string> ignored)
    : checkpoint_(std::move(checkpoint)), storage_of_(checkpoint_, policy) {
  std::map<std::string, at::ScalarType> types;
  for (const auto& [name, info] : checkpoint_->tensors()) {
    const auto prefix = std::find_if(prefixes.begin(), prefixes.end(),
                                     [&](const std::string& p) { return name.starts_with(p); });
    if (prefix == prefixes.end() || storage_of_.is_scale(name) ||
        starts_with_any(std::string_view(name).substr(prefix->size()), ignored))
      continue;
    const at::ScalarType stored_as = storage_of_.dtype_of(name);
    Place place = place_of(info, stored_as, bytes_);
    const bool scaled = storage_of_.has_row_scales(name);
    if (scaled) place.row_step = place.num_rows;  // rows and scales stay on one rank
    if (place.end() > place.begin) name_at_.emplace(place.begin, name);
    bytes_ = round_up(place.end());
    // Right behind the weight, where no share is cut.
    if (scaled) bytes_ = round_up(bytes_ + scale_bytes(info));
    places_.emplace(name, place);
    types.emplace(name, stored_as);
  }
  try {
    storage_ = at::empty({bytes_}, at::TensorOptions(at::kByte).device(device));
  } catch (const c10::Error&) {
    fail(ErrorKind::memory,
         fmt::format("the weights of \"{}\" need {} on {}, which cannot be allocated",
                     checkpoint_->path().string(), human_bytes(static_cast<double>(bytes_)),
                     device.str()));
  }
  for (const auto& [name, place] : places_) {
    views_.emplace(name, storage_.narrow(0, place.begin, place.end() - place.begin)
                             .view(types.at(name))
                             .view(checkpoint_->tensors().at(name).shape));
    if (!storage_of_.has_row_scales(name)) continue;
    row_scales_.emplace(
        name,
        storage_.narrow(0, round_up(place.end()), scale_bytes(checkpoint_->tensors().at(name)))
            .view(at::kFloat));
  }
}

WeightArena::Place WeightArena::place_of(const TensorInfo& info, at::ScalarType stored_as,
                                         int64_t begin) {
  Place place{.begin = begin};
  if (!info.shape.empty()) place.num_rows = info.shape[0];
  const int64_t bytes = info.numel() * static_cast<int64_t>(c10::elementSize(stored_as));
  place.row_bytes = place.num_rows == 0 ? 0 : bytes / place.num_rows;
  const bool divisible = info.shape.size() > 1 && at::isFloatingType(stored_as) && bytes > 0;
  place.row_step = divisible ? kAlignment / std::gcd(kAlignment, place.row_bytes)
                             : std::max<int64_t>(1, place.num_rows);
  return place;
}

int64_t WeightArena::cut_near(int64_t target) const {
  const auto after = name_at_.upper_bound(target);
  if (after == name_at_.begin() || target >= bytes_) return std::clamp<int64_t>(target, 0, bytes_);
  const Place& place = places_.at(std::prev(after)->second);
  const int64_t next = after == name_at_.end() ? bytes_ : after->first;
  const int64_t step = place.row_step * place.row_bytes;
  const int64_t below = place.begin + (target - place.begin) / step * step;
  const int64_t above = below + step < place.end() ? below + step : next;
  if (below >= place.end()) return next;  // in the padding behind a weight
  return target - below <= above - target ? below : above;
}

ArenaPiece WeightArena::piece_of(const std::string& name, const Place& place, int64_t begin,
                                 int64_t end) const {
  const TensorInfo& info = checkpoint_->tensors().at(name);
  const int64_t file_row_bytes = info.bytes() / place.num_rows;
  ArenaPiece piece{.name = name, .arena_begin = begin, .arena_end = end};
  piece.first_row = (begin - place.begin) / place.row_bytes;
  piece.num_rows = (end - begin) / place.row_bytes;
  piece.file_begin = info.begin + piece.first_row * file_row_bytes;
  piece.file_end = piece.file_begin + piece.num_rows * file_row_bytes;
  if (storage_of_.has_row_scales(name)) piece.arena_end = round_up(end) + scale_bytes(info);
  return piece;
}

ArenaShare WeightArena::share(int index, int count) const {
  FLOTILLA_ASSERT(0 <= index && index < count);
  ArenaShare share{.begin = cut_near(bytes_ * index / count),
                   .end = cut_near(bytes_ * (index + 1) / count)};
  auto at = name_at_.upper_bound(share.begin);
  if (at != name_at_.begin()) --at;  // the weight that the cut goes through
  for (; at != name_at_.end() && at->first < share.end; ++at) {
    const Place& place = places_.at(at->second);
    const int64_t begin = std::max(place.begin, share.begin);
    const int64_t end = std::min(place.end(), share.end);
    if (begin < end) share.pieces.push_back(piece_of(at->second, place, begin, end));
  }
  return share;
}

void WeightArena::load() {
  FLOTILLA_ASSERT(!loaded_);
  load_share(share(0, 1));
  loaded_ = true;
}

void WeightArena::load_share(const ArenaShare& share) const {
  FLOTILLA_ASSERT(!storage_.is_meta());
  // In file order: the reads are sequential.
  std::vector<const ArenaPiece*> order;
  for (const ArenaPiece& piece : share.pieces) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(), [](const ArenaPiece* a, const ArenaPiece* b) {
    return a->file_begin < b->file_begin;
  });
  read_pieces(*this, order);
}

at::Tensor WeightArena::rows(const ArenaPiece& piece) const {
  const at::Tensor& view = views_.at(piece.name);
  return view.dim() == 0 ? view.view({1}) : view.narrow(0, piece.first_row, piece.num_rows);
}

at::Tensor WeightArena::bytes_of(const ArenaPiece& piece) const {
  return storage_.narrow(0, piece.arena_begin, piece.arena_end - piece.arena_begin);
}

at::Tensor WeightArena::row_scales(const ArenaPiece& piece) const {
  const auto found = row_scales_.find(piece.name);
  return found == row_scales_.end() ? at::Tensor()
                                    : found->second.narrow(0, piece.first_row, piece.num_rows);
}

void WeightArena::read_rows(const ArenaPiece& piece) const {
  const ArenaPiece* const one = &piece;
  read_pieces(*this, {&one, 1});
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

at::Tensor WeightBinder::row_scales(std::string_view name) const {
  const auto at = account_->arena->row_scales().find(prefix_ + std::string(name));
  return at == account_->arena->row_scales().end() ? at::Tensor() : at->second;
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
  if (!account_->arena->file_storage().accepts(stored)) {
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
