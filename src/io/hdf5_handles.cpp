#include "io/hdf5_handles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace flotilla::io {
namespace {

herr_t collect(unsigned, const H5E_error2_t* entry, void* texts) {
  if (entry->desc != nullptr) {
    static_cast<std::vector<std::string>*>(texts)->emplace_back(entry->desc);
  }
  return 0;
}

constexpr std::string_view kErrno = "errno = ";

// A description without its details (times, addresses, the temporary name), but with the system's
// own word: "file write failed: time = ..., errno = 28, ..., buf = 0x..." is
// "file write failed: No space left on device".
std::string plain_reason(const std::string& description) {
  std::string reason = description.substr(0, description.find_first_of(":,"));
  const size_t at = description.find(kErrno);
  if (at == std::string::npos) return reason;
  const int number = std::atoi(description.c_str() + at + kErrno.size());
  return reason + ": " + std::strerror(number);
}

// Walking upward the first entry is the innermost: where the trouble began. What the system says
// goes before what the library concludes from it.
std::string reason_of_stack() {
  std::vector<std::string> entries;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &entries);
  if (entries.empty()) return "no reason given";
  const auto system = std::find_if(entries.begin(), entries.end(), [](const std::string& entry) {
    return entry.find(kErrno) != std::string::npos;
  });
  return plain_reason(system != entries.end() ? *system : entries.front());
}

}  // namespace

void fail_hdf5(ErrorKind kind, const std::filesystem::path& path, const std::string& action) {
  const std::string reason = reason_of_stack();
  const bool is_lock = reason.starts_with("unable to lock file");
  fail(kind, fmt::format("\"{}\": {}: {}{}", path.string(), action, reason,
                         is_lock ? "; another process has it open, or its file system has no locks "
                                   "(then set HDF5_USE_FILE_LOCKING=FALSE)"
                                 : ""));
}

}  // namespace flotilla::io
