// Bytes as a file, in memory where the system has a place for that, for readers that want a path.
// Every file is a new one: a library that remembers what it has open must not meet an older input.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <span>

#include "base/error.h"

namespace flotilla::fuzz {

class ScratchFile {
 public:
  explicit ScratchFile(std::span<const uint8_t> bytes) : path_(folder() / name()) {
    ::unlink(path_.c_str());
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    check_internal(fd >= 0, "a scratch file can be made");
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    ::close(fd);
    check_internal(count == static_cast<ssize_t>(bytes.size()), "a scratch file can be written");
  }
  ~ScratchFile() { ::unlink(path_.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  static const std::filesystem::path& folder() {
    static const std::filesystem::path folder = std::filesystem::is_directory("/dev/shm")
                                                    ? std::filesystem::path("/dev/shm")
                                                    : std::filesystem::temp_directory_path();
    return folder;
  }
  static const std::string& name() {
    static const std::string name = fmt::format("flotilla-fuzz-{}", ::getpid());
    return name;
  }

  std::filesystem::path path_;
};

}  // namespace flotilla::fuzz
