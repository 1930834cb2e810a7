#include "pipeline/precision.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace flotilla::pipeline {
namespace {

// The first with e4m3 tensor cores (Ada).
constexpr gpu::Capability kFp8Capability{8, 9};

}  // namespace

loader::StoragePolicy storage_policy(config::Precision precision) {
  switch (precision) {
    case config::Precision::fp32:
      return at::kFloat;
    case config::Precision::bf16:
      return at::kBFloat16;
    case config::Precision::fp8_cast:
      return loader::StoragePolicy::fp8_cast();
    case config::Precision::fp8_scaled_mm:
      return loader::StoragePolicy::fp8_scaled_mm();
    case config::Precision::automatic:
      break;
  }
  fail(ErrorKind::internal, "the precision of the job is not resolved");
}

config::Precision choose_precision(config::Precision resolved, const loader::Checkpoint& file) {
  const bool is_narrow =
      std::any_of(file.tensors().begin(), file.tensors().end(),
                  [](const auto& entry) { return entry.second.dtype == at::kFloat8_e4m3fn; });
  return is_narrow ? config::Precision::fp8_cast : resolved;
}

void check_precision(config::Precision precision, const gpu::DeviceFacts& device) {
  if (precision != config::Precision::fp8_scaled_mm) return;
  if (!device.capability) {
    fail(ErrorKind::machine,
         fmt::format("precision: fp8_scaled_mm needs a GPU of compute capability {} or newer, and "
                     "this run is on a CPU ({}); use precision: fp8_cast, bf16 or fp32",
                     kFp8Capability.text(), device.name));
  }
  if (*device.capability < kFp8Capability) {
    fail(ErrorKind::machine,
         fmt::format("precision: fp8_scaled_mm needs a GPU of compute capability {} or newer (Ada, "
                     "Hopper), and {} has {}; use precision: fp8_cast or bf16",
                     kFp8Capability.text(), device.name, device.capability->text()));
  }
}

}  // namespace flotilla::pipeline
