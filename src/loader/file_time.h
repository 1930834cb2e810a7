// When a file was changed last, to tell whether it still is the one that was opened.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace flotilla::loader {

// Nanoseconds since 1970.
inline int64_t modified_ns(const struct stat& status) {
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

}  // namespace flotilla::loader
