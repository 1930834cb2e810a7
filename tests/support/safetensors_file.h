// Writes tensors of a test as a safetensors file.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temp_dir.h"

namespace flotilla::test {

inline std::string safetensors_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "F32";
    case at::kHalf:
      return "F16";
    case at::kBFloat16:
      return "BF16";
    case at::kInt:
      return "I32";
    case at::kFloat8_e4m3fn:
      return "F8_E4M3";
    default:
      throw std::invalid_argument(std::string("no safetensors name for ") + c10::toString(type));
  }
}

inline void write_safetensors(const std::filesystem::path& path,
                              const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {}) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor flat = tensor.cpu().contiguous();
    const size_t begin = data.size();
    data.append(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
    header[name] = {{"dtype", safetensors_dtype(flat.scalar_type())},
                    {"shape", flat.sizes().vec()},
                    {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(text.size() >> (8 * i) & 0xFF);
  write_file(path, prefix + text + data);
}

}  // namespace flotilla::test
