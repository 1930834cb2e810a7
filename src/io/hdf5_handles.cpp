#include "io/hdf5_handles.h"

#include <fmt/format.h>

namespace flotilla::io {
namespace {

// Walking upward the first entry is the innermost: where the trouble began.
herr_t keep_first(unsigned depth, const H5E_error2_t* entry, void* text) {
  if (depth == 0 && entry->desc != nullptr) *static_cast<std::string*>(text) = entry->desc;
  return 0;
}

}  // namespace

void fail_hdf5(ErrorKind kind, const std::filesystem::path& path, const std::string& action) {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason);
  const bool is_lock = reason.find("lock") != std::string::npos;
  fail(kind,
       fmt::format(
           "\"{}\": {}: {}{}", path.string(), action, reason.empty() ? "no reason given" : reason,
           is_lock ? "; another process has it open, or its file system has no locks (then set "
                     "HDF5_USE_FILE_LOCKING=FALSE)"
                   : ""));
}

}  // namespace flotilla::io
