#include "io/file_seal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/hash.h"

namespace flotilla::io {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMagic = "FLTLSEAL";
constexpr uint64_t kSealBytes = 24;
constexpr size_t kPieceBytes = 1 << 20;

std::string little_endian(uint64_t value) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string seal_of(uint64_t bytes, uint64_t hash) {
  return std::string(kMagic) + little_endian(bytes) + little_endian(hash);
}

// Of the next `bytes`; the stream fails when they are not there.
uint64_t hash_of(std::istream& in, uint64_t bytes) {
  uint64_t hash = kHashStart;
  std::vector<char> piece(std::min<uint64_t>(bytes, kPieceBytes));
  while (bytes > 0 && in) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(bytes, piece.size()));
    in.read(piece.data(), static_cast<std::streamsize>(count));
    hash = add_to_hash(hash, std::string_view(piece.data(), count));
    bytes -= count;
  }
  return hash;
}

}  // namespace

void add_seal(const fs::path& path, const fs::path& shown) {
  const auto bytes = static_cast<uint64_t>(fs::file_size(path));
  std::ifstream in(path, std::ios::binary);
  const std::string seal = seal_of(bytes, hash_of(in, bytes));
  std::ofstream out(path, std::ios::binary | std::ios::app);
  errno = 0;
  out << seal;
  out.close();
  if (!in || !out)
    fail(ErrorKind::output, fmt::format("\"{}\": cannot write its checksum: {}", shown.string(),
                                        std::strerror(errno)));
}

void check_seal(const fs::path& path) {
  std::error_code code;
  const auto size = static_cast<uint64_t>(fs::file_size(path, code));
  std::ifstream in(path, std::ios::binary);
  if (code || !in) fail(ErrorKind::input, fmt::format("\"{}\" cannot be read", path.string()));
  const uint64_t bytes = size < kSealBytes ? 0 : size - kSealBytes;
  const uint64_t hash = hash_of(in, bytes);
  std::string seal(kSealBytes, '\0');
  in.read(seal.data(), kSealBytes);
  if (!in || !seal.starts_with(kMagic)) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" has no checksum of this program at its end: it is truncated, or "
                     "another program has written or changed it",
                     path.string()));
  }
  if (seal != seal_of(bytes, hash)) {
    fail(ErrorKind::input, fmt::format("\"{}\" is damaged: its bytes do not fit the checksum at "
                                       "its end",
                                       path.string()));
  }
}

}  // namespace flotilla::io
