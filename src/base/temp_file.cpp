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
#include "base/temp_registry.h"

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

// `shown`: the name for messages.
void sync_path(const fs::path& path, const fs::path& shown, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) fail_errno(shown, "sync");
  const int rc = ::fsync(fd);
  const int saved = errno;
  ::close(fd);
  // Some file systems cannot sync a folder; the data itself has been synced by then.
  if (rc != 0 && saved != EINVAL) {
    errno = saved;
    fail_errno(shown, "sync");
  }
}

fs::path temporary_name(const fs::path& path) {
  static std::atomic<int> counter{0};
  // The stem is cut so that a final name of 255 bytes, the most a file system takes, still works.
  const std::string stem = path.stem().string().substr(0, 160);
  return folder_of(path) /
         fmt::format(".{}.{}-{}.tmp{}", stem, ::getpid(), counter++, path.extension().string());
}

// A new empty file beside `path`.
fs::path make_temporary(const fs::path& path) {
  while (true) {
    fs::path temporary = temporary_name(path);
    const int fd = ::open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (fd >= 0) {
      ::close(fd);
      return temporary;
    }
    // Of another machine or container with our process id, perhaps at work: it stays.
    if (errno != EEXIST) fail_errno(path, "write");
  }
}

std::string_view describe(fs::file_type type) {
  switch (type) {
    case fs::file_type::directory:
      return "a folder";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    case fs::file_type::fifo:
      return "a named pipe";
    case fs::file_type::socket:
      return "a socket";
    case fs::file_type::symlink:
      return "a link that leads nowhere";
    default:
      return "not a plain file";
  }
}

// `path` has gone through follow_links().
void check_target(const fs::path& path, bool overwrite) {
  std::error_code code;
  const fs::file_type type = fs::symlink_status(path, code).type();
  if (type == fs::file_type::none) {
    fail(ErrorKind::output, fmt::format("cannot write \"{}\": {}", path.string(), code.message()));
  }
  if (!path.has_filename()) {
    fail(ErrorKind::output,
         fmt::format("output \"{}\" is a folder; give a file name", path.string()));
  }
  if (type == fs::file_type::not_found) return;
  if (type != fs::file_type::regular) {
    fail(ErrorKind::output,
         fmt::format("output \"{}\" is {}; give a file name", path.string(), describe(type)));
  }
  if (!overwrite) {
    fail(ErrorKind::output,
         fmt::format(
             "output \"{}\" exists; use --overwrite (or output.overwrite: true), or another name",
             path.string()));
  }
}

}  // namespace

fs::path follow_links(const fs::path& path) {
  // As many as Linux itself follows.
  constexpr int kMaxLinks = 40;
  fs::path target = path;
  for (int i = 0; i < kMaxLinks; ++i) {
    std::error_code code;
    if (!fs::is_symlink(fs::symlink_status(target, code))) return target;
    const fs::path link = fs::read_symlink(target, code);
    if (code) return target;
    target = target.parent_path() / link;
  }
  return path;
}

PendingFile::PendingFile(const fs::path& path, bool overwrite)
    : final_(follow_links(path)), overwrite_(overwrite) {
  check_target(final_, overwrite_);
  temporary_ = make_temporary(final_);
  entry_ = register_temporary(temporary_);
}

PendingFile::PendingFile(PendingFile&& other) noexcept
    : final_(std::move(other.final_)),
      temporary_(std::exchange(other.temporary_, {})),
      entry_(std::exchange(other.entry_, -1)),
      overwrite_(other.overwrite_) {}

PendingFile::~PendingFile() {
  if (temporary_.empty()) return;
  std::error_code ignored;
  fs::remove(temporary_, ignored);
  forget_temporary(entry_);
}

void PendingFile::commit() {
  sync_path(temporary_, final_, O_RDONLY);
  // link() refuses an existing name, so a file that appeared meanwhile is not lost.
  const bool linked = !overwrite_ && ::link(temporary_.c_str(), final_.c_str()) == 0;
  if (!overwrite_ && !linked && errno == EEXIST) {
    fail(ErrorKind::output,
         fmt::format("output \"{}\" appeared while the job ran; the new file was dropped",
                     final_.string()));
  }
  if (linked) {
    std::error_code ignored;
    fs::remove(temporary_, ignored);
  } else if (::rename(temporary_.c_str(), final_.c_str()) != 0) {
    // Also without overwrite_, on file systems that have no hard links.
    fail_errno(final_, "rename to");
  }
  temporary_.clear();
  forget_temporary(std::exchange(entry_, -1));
  sync_path(folder_of(final_), final_, O_RDONLY | O_DIRECTORY);
}

void check_output_place(const fs::path& path, bool overwrite) {
  const fs::path target = follow_links(path);
  check_target(target, overwrite);  // before folders are made
  const fs::path folder = folder_of(target);
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) {
    fail(ErrorKind::output, fmt::format("cannot make the folder \"{}\" of output \"{}\": {}",
                                        folder.string(), path.string(), code.message()));
  }
  const PendingFile probe(path, overwrite);
}

}  // namespace flotilla
