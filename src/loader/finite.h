// NaN and infinity in weights: one such number spreads to every pixel, and the message at the end
// of a stage would not say where it came from.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

namespace flotilla::loader {

// Throws ErrorKind::input, with tensor and file, when a number of `values` (contiguous, on the CPU)
// is not finite. Other than floating types pass. One read of the memory, no copy.
void check_finite(const at::Tensor& values, const std::string& name,
                  const std::filesystem::path& file);

}  // namespace flotilla::loader
