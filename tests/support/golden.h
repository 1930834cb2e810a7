// Golden numbers: tensors that the LTX-2 Python reference computed, with the parameters of the run.
// FLOTILLA_GOLDEN_DIR and FLOTILLA_TINY_DIR name other sets; sizes are always taken from the
// tensors.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "loader/checkpoint.h"

namespace flotilla::test {

// Folders of the golden files and of the tiny checkpoints.
std::filesystem::path golden_dir();
std::filesystem::path tiny_dir();
// The project's source folder (for models/demo, configs, docs).
std::filesystem::path source_dir();

class Golden {
 public:
  // `name` without extension, e.g. "transformer_ltx23".
  explicit Golden(const std::string& name);

  at::Tensor operator[](const std::string& tensor) const { return file_->read(tensor); }
  bool has(const std::string& tensor) const { return file_->has(tensor); }
  // Names that start with `prefix`, sorted.
  std::vector<std::string> names(const std::string& prefix = "") const;
  // The parameters of the run (JSON; {} when the file has none).
  const nlohmann::json& params() const { return params_; }

 private:
  std::shared_ptr<const loader::Checkpoint> file_;
  nlohmann::json params_;
};

// A checkpoint of the tiny set.
std::shared_ptr<const loader::Checkpoint> open_tiny(const std::string& file_name);

}  // namespace flotilla::test
