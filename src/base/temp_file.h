// Outputs appear whole or not at all: they are written beside their final name, synced and renamed.
#pragma once

#include <filesystem>
#include <string>

namespace flotilla {

// The file that `path` stands for: symbolic links in its last place are followed, also to a file
// that is not there yet. A circle of links, and a link that cannot be read, are given back.
std::filesystem::path follow_links(const std::filesystem::path& path);

// A name beside `path` that nobody else uses (process id, counter). It is removed when the object
// dies without commit(), or when a signal ends the process (base/temp_registry.h). An output that
// is a symbolic link stays one: the file behind it is written.
class PendingFile {
 public:
  // Errors (ErrorKind::output): the folder is missing or not writable, the name is too long, there
  // is something at `path` that is no plain file (folder, device, pipe), or a file and `overwrite`
  // is false. Creates the empty temporary file, so the place is proven.
  PendingFile(const std::filesystem::path& path, bool overwrite);
  ~PendingFile();
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  // Where to write; keeps the extension of the final name, which some writers look at.
  const std::filesystem::path& temporary() const { return temporary_; }
  // Behind links.
  const std::filesystem::path& final_path() const { return final_; }
  // Syncs the file and its folder and renames. Errors: ErrorKind::output.
  void commit();

 private:
  std::filesystem::path final_;
  std::filesystem::path temporary_;
  int entry_ = -1;  // in the registry
  bool overwrite_;
};

// Throws ErrorKind::output unless a file can be made at `path`: the check before the work starts.
// Missing parent folders are made.
void check_output_place(const std::filesystem::path& path, bool overwrite);

}  // namespace flotilla
