#include "base/temp_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace flotilla {
namespace fs = std::filesystem;
namespace {

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

[[noreturn]] void fail_errno(const fs::path& path, std::string_view action) {
  fail(ErrorKind::output,
       fmt::format("cannot {} \"{}\": {}", action, path.string(), std::strerror(errno)));
}

void sync_path(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) fail_errno(path, "open");
  const int rc = ::fsync(fd);
  const int saved = errno;
  ::close(fd);
  // Some file systems cannot sync a folder; the data itself has been synced by then.
  if (rc != 0 && saved != EINVAL) {
    errno = saved;
    fail_errno(path, "sync");
  }
}

fs::path make_temporary(const fs::path& path) {
  static std::atomic<int> counter{0};
  // The stem is cut so that a final name of 255 bytes, the most a file system takes, still works.
  const std::string stem = path.stem().string().substr(0, 160);
  return folder_of(path) /
         fmt::format(".{}.{}-{}.tmp{}", stem, ::getpid(), counter++, path.extension().string());
}

void check_target(const fs::path& path, bool overwrite) {
  std::error_code code;
  const auto status = fs::status(path, code);
  if (fs::is_directory(status)) {
    fail(ErrorKind::output,
         fmt::format("output \"{}\" is a folder; give a file name", path.string()));
  }
  if (fs::exists(status) && !overwrite) {
    fail(ErrorKind::output,
         fmt::format(
             "output \"{}\" exists; use --overwrite (or output.overwrite: true), or another name",
             path.string()));
  }
}

}  // namespace

PendingFile::PendingFile(fs::path path, bool overwrite)
    : final_(std::move(path)), overwrite_(overwrite) {
  check_target(final_, overwrite_);
  temporary_ = make_temporary(final_);
  const int fd = ::open(temporary_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (fd < 0) fail_errno(final_, "write");
  ::close(fd);
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : final_(std::move(other.final_)),
      temporary_(std::exchange(other.temporary_, {})),
      overwrite_(other.overwrite_) {}

PendingFile::~PendingFile() {
  if (temporary_.empty()) return;
  std::error_code ignored;
  fs::remove(temporary_, ignored);
}

void PendingFile::commit() {
  sync_path(temporary_, O_RDONLY);
  if (overwrite_) {
    if (::rename(temporary_.c_str(), final_.c_str()) != 0) fail_errno(final_, "rename to");
  } else {
    // link() refuses an existing name, so a file that appeared meanwhile is not lost.
    if (::link(temporary_.c_str(), final_.c_str()) != 0) {
      if (errno == EEXIST) {
        fail(ErrorKind::output,
             fmt::format("output \"{}\" appeared while the job ran; the new file was dropped",
                         final_.string()));
      }
      // File systems without hard links.
      if (::rename(temporary_.c_str(), final_.c_str()) != 0) fail_errno(final_, "rename to");
      temporary_.clear();
    }
  }
  if (!temporary_.empty()) {
    std::error_code ignored;
    if (!overwrite_) fs::remove(temporary_, ignored);
    temporary_.clear();
  }
  sync_path(folder_of(final_), O_RDONLY | O_DIRECTORY);
}

void check_output_place(const fs::path& path, bool overwrite) {
  std::error_code code;
  fs::create_directories(folder_of(path), code);
  if (code) {
    fail(ErrorKind::output, fmt::format("cannot make the folder \"{}\" of output \"{}\": {}",
                                        folder_of(path).string(), path.string(), code.message()));
  }
  const PendingFile probe(path, overwrite);
}

}  // namespace flotilla
