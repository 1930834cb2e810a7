#include "io/file_bytes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace flotilla::io {
namespace {

[[noreturn]] void fail_write(const std::filesystem::path& path) {
  fail(ErrorKind::output,
       fmt::format("cannot write \"{}\": {}", path.string(), std::strerror(errno)));
}

}  // namespace

ByteWriter::ByteWriter(const std::filesystem::path& path, std::filesystem::path shown)
    : shown_(std::move(shown)),
      fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (fd_ < 0) fail_write(shown_);
}

ByteWriter::~ByteWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void ByteWriter::write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_write(shown_);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

void ByteWriter::close() {
  if (::close(std::exchange(fd_, -1)) != 0) fail_write(shown_);
}

void write_bytes(const std::filesystem::path& path, const std::filesystem::path& shown,
                 std::span<const uint8_t> bytes) {
  ByteWriter writer(path, shown);
  writer.write(bytes);
  writer.close();
}

}  // namespace flotilla::io
