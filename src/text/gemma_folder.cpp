#include "text/gemma_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <iterator>
#include <vector>

#include "base/error.h"

namespace flotilla::text {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com";
constexpr std::string_view kComplete =
    "a complete folder has config.json, tokenizer.model and the weights (model.safetensors, or "
    "model.safetensors.index.json with its shards)";

}  // namespace

void check_gemma_folder(const fs::path& folder) {
  std::error_code code;
  if (!fs::is_directory(folder, code)) {
    fail(ErrorKind::input,
         fmt::format("the text encoder \"{}\" is not a folder; {}", folder.string(), kComplete));
  }
  const auto has = [&](const char* name) { return fs::exists(folder / name, code); };
  std::vector<std::string> missing;
  for (const char* name : {"config.json", "tokenizer.model"}) {
    if (!has(name)) missing.emplace_back(name);
  }
  if (!has("model.safetensors") && !has("model.safetensors.index.json")) {
    missing.emplace_back("model.safetensors");
  }
  if (!missing.empty()) {
    fail(ErrorKind::input, fmt::format("the text encoder folder \"{}\" has no {}; {}",
                                       folder.string(), fmt::join(missing, ", "), kComplete));
  }
}

std::string read_gemma_file(const fs::path& folder, const std::string& name) {
  std::error_code code;
  if (fs::exists(folder / name, code) && !fs::is_regular_file(folder / name, code)) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" is not a file{}", (folder / name).string(),
                     fs::is_directory(folder / name, code) ? " but a folder" : ""));
  }
  std::ifstream in(folder / name, std::ios::binary);
  if (!in) {
    fail(ErrorKind::input, fmt::format("the text encoder folder \"{}\" has no readable {}; {}",
                                       folder.string(), name, kComplete));
  }
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (bytes.starts_with(kLfsPointer)) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" is a Git-LFS pointer, not the file; run \"git lfs pull\" in \"{}\"",
                     (folder / name).string(), folder.string()));
  }
  return bytes;
}

nlohmann::json read_gemma_json(const fs::path& folder) {
  auto config = nlohmann::json::parse(read_gemma_file(folder, "config.json"), nullptr, false);
  if (config.is_discarded()) {
    fail(ErrorKind::input, fmt::format("\"{}\" is not JSON", (folder / "config.json").string()));
  }
  return config;
}

}  // namespace flotilla::text
