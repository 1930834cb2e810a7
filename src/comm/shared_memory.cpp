#include "comm/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace flotilla::comm {
namespace {

// Younger objects may be in the hands of ranks that are just mapping them.
constexpr int64_t kStaleAfterSeconds = 60;

std::string name_prefix() { return fmt::format("flotilla.{}.", getuid()); }

// "/flotilla.<user>.<process>.<counter>": unique among live processes; a dead one's is taken over.
std::string next_name() {
  static std::atomic<uint64_t> counter = 0;
  return fmt::format("/{}{}.{}", name_prefix(), getpid(), counter++);
}

[[noreturn]] void fail_shared(const char* action, const std::string& name, int code) {
  fail(ErrorKind::machine, fmt::format("cannot {} shared memory {}{}: {}", action, kSharedFolder,
                                       name, std::strerror(code)));
}

std::byte* map(int fd, int64_t bytes, const std::string& name) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) fail_shared("map", name, errno);
  return static_cast<std::byte*>(data);
}

}  // namespace

SharedMemory SharedMemory::create(int64_t bytes) {
  FLOTILLA_ASSERT(bytes > 0);
  SharedMemory made;
  const std::string name = next_name();
  made.fd_ = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (made.fd_ < 0 && errno == EEXIST) {  // of a dead process that had our id
    shm_unlink(name.c_str());
    made.fd_ = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  }
  if (made.fd_ < 0) fail_shared("make", name, errno);
  made.name_ = name;
  if (ftruncate(made.fd_, bytes) != 0) fail_shared("size", name, errno);
  made.data_ = map(made.fd_, bytes, name);
  made.bytes_ = bytes;
  return made;
}

SharedMemory SharedMemory::open(const std::string& name, int64_t bytes) {
  SharedMemory opened;
  opened.fd_ = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
  if (opened.fd_ < 0) fail_shared("open", name, errno);
  struct stat facts {};
  if (fstat(opened.fd_, &facts) != 0) fail_shared("look at", name, errno);
  FLOTILLA_ASSERT(facts.st_size >= bytes);
  opened.data_ = map(opened.fd_, bytes, name);
  opened.bytes_ = bytes;
  return opened;
}

SharedMemory::~SharedMemory() {
  unlink();
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
  if (fd_ >= 0) ::close(fd_);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  std::swap(name_, other.name_);
  return *this;
}

void SharedMemory::reserve(int64_t offset, int64_t length) {
  FLOTILLA_ASSERT(offset >= 0 && length >= 0 && offset <= bytes_ - length);
  if (length == 0) return;
  int code = EINTR;
  while (code == EINTR) code = posix_fallocate(fd_, offset, length);
  if (code == ENOSPC || code == ENOMEM) {
    fail(ErrorKind::memory,
         fmt::format("{} has no room for {} of exchange buffers; enlarge it (containers: "
                     "--shm-size, or mount the host's), or use a smaller clip",
                     kSharedFolder, human_bytes(static_cast<double>(length))));
  }
  if (code != 0) fail_shared("reserve", name_, code);
}

void SharedMemory::unlink() noexcept {
  if (name_.empty()) return;
  shm_unlink(name_.c_str());
  name_.clear();
}

int remove_stale_shared_memory() noexcept {
  int removed = 0;
  try {
    const std::string prefix = name_prefix();
    for (const auto& entry : std::filesystem::directory_iterator(kSharedFolder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(prefix)) continue;
      struct stat facts {};
      if (stat(entry.path().c_str(), &facts) != 0) continue;
      const bool young = std::time(nullptr) - facts.st_ctime < kStaleAfterSeconds;
      const std::string pid =
          name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size());
      if (young || std::filesystem::exists("/proc/" + pid)) continue;
      if (shm_unlink(("/" + name).c_str()) == 0) ++removed;
    }
  } catch (const std::exception&) {
    // A folder that cannot be listed has nothing that we could remove.
  }
  return removed;
}

}  // namespace flotilla::comm
