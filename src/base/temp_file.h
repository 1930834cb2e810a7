// Outputs appear whole or not at all: they are written beside their final name, synced and renamed.
#pragma once

#include <filesystem>
#include <string>

namespace flotilla {

// A name beside `path` that nobody else uses (process id, counter). It is removed when the object
// dies without commit().
class PendingFile {
 public:
  // Errors (ErrorKind::output): the folder is missing or not writable, `path` is a folder, or it
  // exists and `overwrite` is false. Creates the empty temporary file, so the place is proven.
  PendingFile(std::filesystem::path path, bool overwrite);
  ~PendingFile();
  PendingFile(PendingFile&& other) noexcept;
  PendingFile& operator=(PendingFile&&) = delete;
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  // Where to write; keeps the extension of the final name, which some writers look at.
  const std::filesystem::path& temporary() const { return temporary_; }
  const std::filesystem::path& final_path() const { return final_; }
  // Syncs the file and its folder and renames. Errors: ErrorKind::output.
  void commit();

 private:
  std::filesystem::path final_;
  std::filesystem::path temporary_;
  bool overwrite_;
};

// Throws ErrorKind::output unless a file can be made at `path`: the check before the work starts.
// Missing parent folders are made.
void check_output_place(const std::filesystem::path& path, bool overwrite);

}  // namespace flotilla
