#include "io/name_locks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

namespace flotilla::io {

NameLocks::NameLocks(const std::filesystem::path& file)
    : file_(file), fd_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  if (fd_ >= 0) return;
  fail(ErrorKind::output,
       fmt::format("cannot open the lock file \"{}\": {}", file.string(), std::strerror(errno)));
}

NameLocks::~NameLocks() { ::close(fd_); }

bool NameLocks::try_lock(std::string_view name) {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  // Locks may lie behind the end of the file, which stays empty. Two names that share a byte (one
  // pair in 2^62) would only wait for each other.
  range.l_start = static_cast<off_t>(add_to_hash(kHashStart, name) >> 2);
  range.l_len = 1;
  // Of this open file, not of the process: a second object in the same process is kept out too, and
  // closing another descriptor of the file does not end them.
  if (::fcntl(fd_, F_OFD_SETLK, &range) == 0) return true;
  if (errno == EAGAIN || errno == EACCES) return false;
  if (!has_warned_) {
    log::warn("sweep", "\"{}\" cannot be locked ({}): see to it that one process only works on it",
              file_.string(), std::strerror(errno));
  }
  has_warned_ = true;
  return true;
}

}  // namespace flotilla::io
