// The safetensors file format: an 8-byte little-endian header length, a JSON header, the data.
// Files are data from strangers: the header is checked against the file before anything is read.
// Tensors may lie on any byte. Next: checkpoint.h (one or several files as one set of names).
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::loader {

struct TensorInfo {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // byte offsets from the start of the file
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
  int64_t numel() const;
};

// The format's name of a type: "BF16".
std::string_view dtype_name(at::ScalarType type);
// Whether weights may be stored so: F64, F32, F16 and BF16. Integers in their place are a damaged
// or quantised file; 8-bit floats mean nothing without their scales.
bool is_weight_dtype(at::ScalarType type);

struct SafetensorsHeader {
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  int64_t header_bytes = 0;  // length prefix included
  int64_t file_bytes = 0;
};

// A header as it lies in its file, and the file as it was then.
struct HeaderText {
  std::string json;
  int64_t file_bytes = 0;
  int64_t modified_ns = 0;  // time of the last change, since 1970
};

// Errors (ErrorKind::input, the file named): no such file, a length prefix that does not fit it; a
// Git-LFS pointer is recognised by name.
HeaderText read_header_text(const std::filesystem::path& path);
// Checked: JSON, known dtypes, shapes times size equal to the byte range, ranges inside the file,
// without overlap or holes. Errors (ErrorKind::input, `path` named): all of that.
SafetensorsHeader parse_header(const std::filesystem::path& path, const HeaderText& text);
// Both. Errors: theirs.
SafetensorsHeader read_safetensors_header(const std::filesystem::path& path);

}  // namespace flotilla::loader
