#include "support/golden.h"

#include <cstdlib>

namespace flotilla::test {
namespace fs = std::filesystem;
namespace {

fs::path from_environment(const char* variable, const fs::path& otherwise) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? fs::path(value) : otherwise;
}

}  // namespace

fs::path source_dir() { return FLOTILLA_SOURCE_DIR; }
fs::path golden_dir() {
  return from_environment("FLOTILLA_GOLDEN_DIR", source_dir() / "tests/data/golden");
}
fs::path tiny_dir() {
  return from_environment("FLOTILLA_TINY_DIR", source_dir() / "tests/data/tiny");
}

Golden::Golden(const std::string& name)
    : file_(loader::Checkpoint::open(golden_dir() / (name + ".safetensors"))),
      params_(nlohmann::json::object()) {
  if (const std::string* text = file_->metadata("params")) params_ = nlohmann::json::parse(*text);
}

std::vector<std::string> Golden::names(const std::string& prefix) const {
  std::vector<std::string> found;
  for (const auto& [name, info] : file_->tensors()) {
    if (name.starts_with(prefix)) found.push_back(name);
  }
  return found;
}

std::shared_ptr<const loader::Checkpoint> open_tiny(const std::string& file_name) {
  return loader::Checkpoint::open(tiny_dir() / file_name);
}

}  // namespace flotilla::test
