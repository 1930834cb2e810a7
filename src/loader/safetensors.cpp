#include "loader/safetensors.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "loader/file_time.h"

namespace flotilla::loader {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

// The format's own limit (100 MB); a larger header is an attack or another kind of file.
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kPrefixBytes = 8;
constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com";

struct DtypeName {
  std::string_view name;
  at::ScalarType type;
};
constexpr DtypeName kDtypes[] = {
    {"F64", at::kDouble},
    {"F32", at::kFloat},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"I64", at::kLong},
    {"I32", at::kInt},
    {"I16", at::kShort},
    {"I8", at::kChar},
    {"U8", at::kByte},
    {"BOOL", at::kBool},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
};

[[noreturn]] void bad(const fs::path& path, std::string_view what) {
  fail(ErrorKind::input,
       fmt::format("\"{}\" is not a usable safetensors file: {}", path.string(), what));
}

at::ScalarType dtype_of(const std::string& name, const fs::path& path, const std::string& tensor) {
  for (const auto& row : kDtypes) {
    if (row.name == name) return row.type;
  }
  bad(path, fmt::format("tensor \"{}\" has the unknown dtype \"{}\"", tensor, excerpt(name)));
}

// a * b, or nothing on overflow.
std::optional<int64_t> multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// A non-negative JSON integer that fits.
std::optional<int64_t> size_of(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(number);
}

TensorInfo parse_tensor(const fs::path& path, const std::string& name, const json& entry,
                        int64_t data_start, int64_t data_bytes) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    bad(path, fmt::format("the entry of tensor \"{}\" lacks dtype, shape or data_offsets",
                          excerpt(name)));
  }
  TensorInfo info;
  info.dtype = dtype_of(entry["dtype"].get<std::string>(), path, excerpt(name));
  int64_t bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
  for (const auto& extent : entry["shape"]) {
    const auto size = size_of(extent);
    const auto product = size ? multiply(bytes, *size) : std::nullopt;
    if (!product) bad(path, fmt::format("tensor \"{}\" has an impossible shape", excerpt(name)));
    info.shape.push_back(*size);
    bytes = *product;
  }
  const auto begin = size_of(entry["data_offsets"][0]);
  const auto end = size_of(entry["data_offsets"][1]);
  if (!begin || !end || *begin > *end || *end > data_bytes) {
    bad(path, fmt::format("tensor \"{}\" lies outside the file, which is {} bytes long (cut off?)",
                          excerpt(name), data_start + data_bytes));
  }
  if (*end - *begin != bytes) {
    bad(path, fmt::format("tensor \"{}\" of shape {} needs {} bytes, its range has {}",
                          excerpt(name), shape_text(info.shape), bytes, *end - *begin));
  }
  info.begin = data_start + *begin;
  info.end = data_start + *end;
  return info;
}

void check_ranges(const fs::path& path, const SafetensorsHeader& header) {
  std::vector<const TensorInfo*> order;
  for (const auto& [name, info] : header.tensors) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  int64_t at = header.header_bytes;
  for (const TensorInfo* info : order) {
    if (info->begin != at) bad(path, "its tensors overlap or leave holes");
    at = info->end;
  }
  if (at != header.file_bytes) {
    bad(path, fmt::format("it is {} bytes long, its header speaks of {}", header.file_bytes, at));
  }
}

}  // namespace

std::string_view dtype_name(at::ScalarType type) {
  for (const auto& row : kDtypes) {
    if (row.type == type) return row.name;
  }
  fail(ErrorKind::internal, fmt::format("no safetensors name for {}", c10::toString(type)));
}

bool is_weight_dtype(at::ScalarType type) {
  return type == at::kDouble || type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

int64_t TensorInfo::numel() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

HeaderText read_header_text(const fs::path& path) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" {}", path.string(),
                     fs::exists(path, code) ? "is not a file" : "does not exist"));
  }
  std::ifstream in(path, std::ios::binary);
  struct stat status = {};
  if (!in || ::stat(path.c_str(), &status) != 0)
    fail(ErrorKind::input, fmt::format("\"{}\" cannot be opened for reading", path.string()));
  HeaderText header;
  header.file_bytes = status.st_size;
  header.modified_ns = modified_ns(status);
  std::string start(static_cast<size_t>(std::min<int64_t>(header.file_bytes, 64)), '\0');
  in.read(start.data(), static_cast<std::streamsize>(start.size()));
  if (start.starts_with(kLfsPointer)) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" is a Git-LFS pointer, not the weights; run \"git lfs pull\" or "
                     "download the file itself",
                     path.string()));
  }
  if (header.file_bytes < kPrefixBytes) bad(path, "it is shorter than the 8-byte length prefix");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(start[static_cast<size_t>(i)]);
  if (length > static_cast<uint64_t>(std::min(kMaxHeaderBytes, header.file_bytes - kPrefixBytes))) {
    bad(path,
        fmt::format("its header claims {} bytes, the file has {}", length, header.file_bytes));
  }
  header.json.resize(length);
  in.seekg(kPrefixBytes);
  in.read(header.json.data(), static_cast<std::streamsize>(length));
  if (!in) bad(path, "its header cannot be read");
  return header;
}

SafetensorsHeader parse_header(const fs::path& path, const HeaderText& text) {
  SafetensorsHeader header;
  header.header_bytes = kPrefixBytes + static_cast<int64_t>(text.json.size());
  header.file_bytes = text.file_bytes;
  const json document = json::parse(text.json, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) bad(path, "its header is not a JSON object");
  for (const auto& [name, entry] : document.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) bad(path, "its __metadata__ is not a JSON object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string())
          bad(path, fmt::format("its metadata \"{}\" is not a string", excerpt(key)));
        header.metadata.emplace(key, value.get<std::string>());
      }
      continue;
    }
    header.tensors.emplace(name, parse_tensor(path, name, entry, header.header_bytes,
                                              header.file_bytes - header.header_bytes));
  }
  check_ranges(path, header);
  return header;
}

SafetensorsHeader read_safetensors_header(const fs::path& path) {
  return parse_header(path, read_header_text(path));
}

}  // namespace flotilla::loader
