#include "loader/finite.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdint>

#include "base/error.h"

namespace flotilla::loader {
namespace {

// In every type here a number is not finite exactly when all bits of a mask are set: the exponent,
// or exponent and mantissa in e4m3, which has no infinity. A loop over integers, because
// at::isfinite() makes copies of the tensor and takes several times as long as reading the file.
// Not at::parallel_for(): files are read by several threads, each of which would wake a team.
template <typename Word>
bool any_with_bits(const at::Tensor& values, Word mask) {
  const auto* words = static_cast<const Word*>(values.const_data_ptr());
  const int64_t count = values.numel();
  Word hits = 0;  // no early end: the loop becomes vector instructions
  for (int64_t i = 0; i < count; ++i) hits |= static_cast<Word>((words[i] & mask) == mask);
  return hits != 0;
}

bool all_finite(const at::Tensor& values) {
  switch (values.scalar_type()) {
    case at::kDouble:
      return !any_with_bits<uint64_t>(values, 0x7FF0'0000'0000'0000);
    case at::kFloat:
      return !any_with_bits<uint32_t>(values, 0x7F80'0000);
    case at::kHalf:
      return !any_with_bits<uint16_t>(values, 0x7C00);
    case at::kBFloat16:
      return !any_with_bits<uint16_t>(values, 0x7F80);
    case at::kFloat8_e4m3fn:
      return !any_with_bits<uint8_t>(values, 0x7F);
    case at::kFloat8_e5m2:
      return !any_with_bits<uint8_t>(values, 0x7C);
    default:
      return true;
  }
}

}  // namespace

void check_finite(const at::Tensor& values, const std::string& name,
                  const std::filesystem::path& file) {
  FLOTILLA_ASSERT(values.is_contiguous() && values.device().is_cpu());
  if (all_finite(values)) return;
  if (values.scalar_type() == at::kFloat8_e4m3fn) {
    fail(ErrorKind::input,
         fmt::format(
             "tensor \"{}\" of \"{}\" holds NaN, infinity or a number beyond 448, the largest "
             "of the 8-bit format that it is stored in here; use precision: bf16, or get "
             "the file again",
             name, file.string()));
  }
  fail(ErrorKind::input,
       fmt::format(
           "tensor \"{}\" of \"{}\" holds NaN or infinity (read as {}); the file is damaged, "
           "or was made so: get it again",
           name, file.string(), c10::toString(values.scalar_type())));
}

}  // namespace flotilla::loader
