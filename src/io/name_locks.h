// Locks on names in a folder that processes share: each name is one byte of a lock file. They end
// with the process, however it ends, so none is ever stale.
#pragma once

#include <filesystem>
#include <string_view>

namespace flotilla::io {

class NameLocks {
 public:
  // Opens or creates `file`, which stays. Errors: ErrorKind::output.
  explicit NameLocks(const std::filesystem::path& file);
  ~NameLocks();
  NameLocks(const NameLocks&) = delete;
  NameLocks& operator=(const NameLocks&) = delete;

  // False when another process (or another object) holds the lock on `name`. True, with a warning,
  // where the file system has no locks.
  bool try_lock(std::string_view name);

 private:
  std::filesystem::path file_;
  int fd_;
  bool has_warned_ = false;
};

}  // namespace flotilla::io
