// A checkpoint with a true header and a sparse body: real names, shapes and file size without the
// weights (they read as zeros and take no disk space). For tests, dry runs and forecasts of models
// that are not at hand.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "loader/safetensors.h"

namespace flotilla::loader {

// Writes `path` with these tensors (offsets are assigned here) and metadata.
// Errors: ErrorKind::output.
void write_sparse_checkpoint(const std::filesystem::path& path,
                             const std::map<std::string, TensorInfo>& tensors,
                             const std::map<std::string, std::string>& metadata);

}  // namespace flotilla::loader
