#include "loader/sparse_checkpoint.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace flotilla::loader {

void write_sparse_checkpoint(const std::filesystem::path& path,
                             const std::map<std::string, TensorInfo>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t at = 0;
  for (const auto& [name, info] : tensors) {
    const int64_t bytes = info.numel() * static_cast<int64_t>(c10::elementSize(info.dtype));
    header[name] = {{"dtype", dtype_name(info.dtype)},
                    {"shape", info.shape},
                    {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  const std::string text = header.dump();
  std::ofstream out(path, std::ios::binary);
  for (int i = 0; i < 8; ++i) out.put(static_cast<char>(text.size() >> (8 * i) & 0xFF));
  out << text;
  out.close();
  std::error_code code;
  if (out) std::filesystem::resize_file(path, 8 + text.size() + static_cast<uint64_t>(at), code);
  if (!out || code) fail(ErrorKind::output, fmt::format("cannot write \"{}\"", path.string()));
}

}  // namespace flotilla::loader
