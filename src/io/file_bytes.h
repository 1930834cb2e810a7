// Writing plain bytes with every failure seen: a full disk shows in write() or only in close().
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace flotilla::io {

// A file open for writing from its beginning. `shown` is the name for messages: the final path,
// where `path` is that of a PendingFile. All errors are ErrorKind::output.
class ByteWriter {
 public:
  ByteWriter(const std::filesystem::path& path, std::filesystem::path shown);
  ~ByteWriter();
  ByteWriter(const ByteWriter&) = delete;
  ByteWriter& operator=(const ByteWriter&) = delete;

  void write(std::span<const uint8_t> bytes);
  void close();

 private:
  std::filesystem::path shown_;
  int fd_;
};

// Fills the file at `path` with `bytes`.
void write_bytes(const std::filesystem::path& path, const std::filesystem::path& shown,
                 std::span<const uint8_t> bytes);

}  // namespace flotilla::io
