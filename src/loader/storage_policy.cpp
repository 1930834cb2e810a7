#include "loader/storage_policy.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"
#include "loader/fault_list.h"
#include "loader/finite.h"

namespace flotilla::loader {
namespace {

constexpr at::ScalarType kE4m3 = at::kFloat8_e4m3fn;
constexpr double kLargestE4m3 = 448.0;
// Elements that are read, checked and converted at a time: few enough that they stay in the cache
// of a processor core from one to the next.
constexpr int64_t kBlockElements = 1 << 19;

constexpr std::string_view kBlocks = "transformer_blocks.";
// The reference's list. Without a leading dot "ff." stands for "audio_ff." too.
constexpr std::array<std::string_view, 6> kQuantisedLayers = {
    ".to_q", ".to_k", ".to_v", ".to_out.0", "ff.net.0.proj", "ff.net.2"};

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kBias = ".bias";
constexpr std::string_view kScale = "_scale";
// The range of activations that the file's maker measured. Not used: activations are scaled by
// what they are.
constexpr std::string_view kInputScale = ".input_scale";

std::string_view without_suffix(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : std::string_view();
}

// The tensor that a scale belongs to, whether or not the file has it; "" for other names.
std::string owner_of(std::string_view name) {
  if (const auto layer = without_suffix(name, kInputScale); !layer.empty())
    return std::string(layer) + std::string(kWeight);
  const std::string_view owner = without_suffix(name, kScale);
  return owner.ends_with(kWeight) || owner.ends_with(kBias) ? std::string(owner) : std::string();
}

int64_t num_rows(const TensorInfo& info) { return info.shape.empty() ? 1 : info.shape[0]; }

// One number for all rows or one for each.
bool fits_rows(const TensorInfo& scale, const TensorInfo& weight) {
  const int64_t count = scale.numel();
  return is_weight_dtype(scale.dtype) &&
         (count == 1 ||
          (count == num_rows(weight) && !scale.shape.empty() && scale.shape[0] == count));
}

}  // namespace

std::string_view StoragePolicy::name() const {
  switch (eight_bit) {
    case EightBit::cast:
      return "fp8_cast";
    case EightBit::scaled:
      return "fp8_scaled_mm";
    case EightBit::none:
      break;
  }
  return dtype == at::kFloat ? "fp32" : "bf16";
}

bool is_quantised_layer(std::string_view tensor) {
  const std::string_view layer =
      without_suffix(tensor, tensor.ends_with(kWeight) ? kWeight : kBias);
  return layer.find(kBlocks) != std::string_view::npos &&
         std::any_of(kQuantisedLayers.begin(), kQuantisedLayers.end(),
                     [layer](std::string_view name) { return layer.ends_with(name); });
}

void quantise_rows(const at::Tensor& rows, const at::Tensor& out, const at::Tensor& scales) {
  const at::Tensor largest = rows.abs().amax(/*dim=*/1).clamp_min(1e-12);
  scales.copy_(largest / kLargestE4m3);
  out.copy_((rows / scales.unsqueeze(1)).clamp(-kLargestE4m3, kLargestE4m3));
}

FileStorage::FileStorage(std::shared_ptr<const Checkpoint> file, StoragePolicy policy)
    : file_(std::move(file)), policy_(policy) {
  for (const auto& [name, info] : file_->tensors()) file_is_quantised_ |= info.dtype == kE4m3;
}

bool FileStorage::accepts(at::ScalarType stored) const {
  return is_weight_dtype(stored) || (stored == kE4m3 && policy_.eight_bit != EightBit::none);
}

std::string FileStorage::scale_of(const std::string& name) const {
  if (policy_.eight_bit == EightBit::none || file_->tensors().at(name).dtype != kE4m3) return "";
  std::string scale = name + std::string(kScale);
  return file_->has(scale) ? scale : "";
}

bool FileStorage::is_scale(const std::string& name) const {
  return policy_.eight_bit != EightBit::none && !owner_of(name).empty();
}

bool FileStorage::has_row_scales(const std::string& name) const {
  const TensorInfo& info = file_->tensors().at(name);
  if (policy_.eight_bit != EightBit::scaled || !name.ends_with(kWeight) || info.shape.size() != 2)
    return false;
  // A file that is quantised itself says which layers bear it: the first and last blocks of the
  // official ones stay bfloat16.
  return file_is_quantised_ ? info.dtype == kE4m3 : is_quantised_layer(name);
}

at::ScalarType FileStorage::dtype_of(const std::string& name) const {
  const at::ScalarType stored = file_->tensors().at(name).dtype;
  if (!at::isFloatingType(stored)) return stored;
  const bool narrow =
      policy_.eight_bit == EightBit::cast ? is_quantised_layer(name) : has_row_scales(name);
  return narrow ? kE4m3 : policy_.dtype;
}

void FileStorage::check(std::string_view prefix) const {
  FaultList faults;
  int64_t num_bare = 0;
  int64_t num_scaled = 0;
  std::string first_bare;
  for (const auto& [name, info] : file_->tensors()) {
    if (!name.starts_with(prefix)) continue;
    if (info.dtype == kE4m3) {
      const auto scale = file_->tensors().find(name + std::string(kScale));
      if (scale == file_->tensors().end()) {
        if (num_bare++ == 0) first_bare = name;
      } else if (++num_scaled; !fits_rows(scale->second, info)) {
        faults.add("a scale is neither one number nor one for each row",
                   fmt::format("{} {} {}", scale->first, dtype_name(scale->second.dtype),
                               shape_text(scale->second.shape)));
      }
    } else if (const std::string owner = owner_of(name); !owner.empty()) {
      const auto weight = file_->tensors().find(owner);
      if (weight == file_->tensors().end() || weight->second.dtype != kE4m3)
        faults.add("a scale without an F8_E4M3 tensor", name);
    }
  }
  const std::string path = file_->path().string();
  const bool wants_scales = policy_.eight_bit == EightBit::scaled;
  if (num_bare + num_scaled > 0 && policy_.eight_bit == EightBit::none) {
    fail(ErrorKind::input,
         fmt::format("precision: {} does not fit \"{}\": it holds {} tensors as F8_E4M3 {} scales; "
                     "use precision: fp8_cast{}, or a file with BF16 weights",
                     policy_.name(), path, num_bare + num_scaled,
                     num_scaled > 0 ? "with" : "without",
                     num_bare == 0 ? " (or fp8_scaled_mm on a GPU)" : ""));
  }
  if (num_bare > 0 && num_scaled == 0 && wants_scales) {
    fail(ErrorKind::input,
         fmt::format("precision: fp8_scaled_mm does not fit \"{}\": it holds {} tensors as F8_E4M3 "
                     "without \"_scale\" tensors beside them (\"{}\"); use precision: fp8_cast",
                     path, num_bare, first_bare));
  }
  if (num_bare > 0 && num_scaled > 0)
    faults.add("F8_E4M3 without a scale, while others have one", first_bare);
  faults.throw_if_any(fmt::format("the 8-bit weights of \"{}\" are not complete", path));
}

at::Tensor FileStorage::read_scale(const std::string& scale, int64_t begin, int64_t end) const {
  at::Tensor values;
  if (file_->tensors().at(scale).numel() == 1) {
    values = file_->read(scale).view({1});
  } else {
    values = file_->read_rows(scale, begin, end).view({-1});
  }
  check_finite(values, scale, file_->path());
  return values.to(at::kFloat).unsqueeze(1);
}

void FileStorage::read_rows(const std::string& name, int64_t begin, int64_t end,
                            const at::Tensor& out, const at::Tensor& scales) const {
  const TensorInfo& info = file_->tensors().at(name);
  const bool is_number = info.shape.empty();
  const std::string scale = scale_of(name);
  const bool row_scales = has_row_scales(name);
  FLOTILLA_ASSERT(out.scalar_type() == dtype_of(name) && out.is_contiguous() &&
                  row_scales == scales.defined());
  if (info.numel() == 0) return;
  const int64_t row_elements = info.numel() / num_rows(info);
  const int64_t block = std::max<int64_t>(1, kBlockElements / row_elements);
  const at::Tensor out_rows = out.view({end - begin, row_elements});
  for (int64_t from = begin; from < end; from += block) {
    const int64_t to = std::min(end, from + block);
    const at::Tensor target = out_rows.narrow(0, from - begin, to - from);
    if (!row_scales && scale.empty()) {
      file_->read_rows_into(name, from, target);
      check_finite(target, name, file_->path());
      continue;
    }
    const at::Tensor rows = (is_number ? file_->read(name) : file_->read_rows(name, from, to))
                                .view({to - from, row_elements});
    if (row_scales && scale.empty()) {
      quantise_rows(rows.to(at::kFloat), target, scales.narrow(0, from - begin, to - from));
    } else if (row_scales) {
      target.copy_(rows);
      scales.narrow(0, from - begin, to - from).copy_(read_scale(scale, from, to).squeeze(1));
    } else {
      // Through bfloat16, as the reference does it.
      target.copy_((rows.to(at::kFloat) * read_scale(scale, from, to)).to(at::kBFloat16));
    }
    check_finite(target, name, file_->path());
  }
}

}  // namespace flotilla::loader
