// One POSIX shared-memory object: made by one process under a name of its own, mapped by its peers
// by that name, then unlinked. From then on the kernel frees it when the last process that maps it
// is gone, however that one ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace flotilla::comm {

class SharedMemory {
 public:
  // A new, zeroed object of `bytes`; only reserve()d parts of it may be touched.
  // Errors (ErrorKind::machine): it cannot be made.
  static SharedMemory create(int64_t bytes);
  // The object that another process made. Errors (ErrorKind::machine): it cannot be mapped.
  static SharedMemory open(const std::string& name, int64_t bytes);

  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  const std::string& name() const { return name_; }  // "" when unlinked, and for a peer's object

  // Backs [offset, offset + length) with memory, so that touching it cannot fail later (a full
  // /dev/shm would be a SIGBUS). The maker only. Errors (ErrorKind::memory): /dev/shm is full.
  void reserve(int64_t offset, int64_t length);
  // Removes the name; the mappings stay. Nothing to do when it is gone already.
  void unlink() noexcept;

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  int fd_ = -1;
  std::string name_;
};

// Where the objects lie.
inline constexpr const char* kSharedFolder = "/dev/shm";

// Removes objects of this user whose maker died between making and unlinking, a window of
// milliseconds. Gives their number.
int remove_stale_shared_memory() noexcept;

}  // namespace flotilla::comm
