// HDF5 files: tensors and attributes through one owner type, with one Error in place of the
// library's error stack. Every dataset carries Fletcher32 checksums, so a damaged one is noticed
// when it is read. Files that are read are data from strangers: signature, kind of link, storage,
// filters, type, rank and size are checked before memory is reserved. The HDF5 library is not
// thread-safe: use it on the compute thread only.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/temp_file.h"

namespace flotilla::io {

class H5File {
 public:
  // A new file at `path`, in place of what is there; `shown` is the name for messages.
  // Errors of the writing calls: ErrorKind::output.
  static H5File create(const std::filesystem::path& path, std::filesystem::path shown);
  // Errors of the reading calls: ErrorKind::input.
  static H5File open(const std::filesystem::path& path);
  // A file of H5PendingFile, checked as a whole (file_seal.h) before the library sees it, which
  // trusts what it reads. open() is for files of this process alone.
  static H5File open_sealed(const std::filesystem::path& path);
  ~H5File();
  H5File(H5File&& other) noexcept;
  H5File& operator=(H5File&&) = delete;
  H5File(const H5File&) = delete;
  H5File& operator=(const H5File&) = delete;

  // Names below begin at the root, without a slash in front: "stage_1/video_latent".
  // float32 or uint8 with 1 to 8 axes and at least one element; other float types become float32.
  // `dims` names the axes. Missing groups are made.
  void write(const std::string& name, const at::Tensor& tensor,
             const std::vector<std::string>& dims);
  // On the CPU, float32 or uint8 as stored.
  at::Tensor read(const std::string& name) const;
  std::vector<std::string> read_dims(const std::string& name) const;
  // Every dataset of a file that is read, sorted.
  const std::vector<std::string>& datasets() const { return datasets_; }
  // An empty group, to hang attributes on; nothing happens when it is there.
  void make_group(const std::string& name);

  // Attributes of an object; "" is the root. Reading gives nothing when there is no such attribute,
  // and is an error when it is of another kind.
  void write_text(const std::string& object, const std::string& key, const std::string& value);
  void write_integer(const std::string& object, const std::string& key, int64_t value);
  std::optional<std::string> read_text(const std::string& object, const std::string& key) const;
  std::optional<int64_t> read_integer(const std::string& object, const std::string& key) const;

  // Names of the attributes of an object, sorted; none when there is no such object.
  std::vector<std::string> attributes(const std::string& object) const;
  bool is_text(const std::string& object, const std::string& key) const;

  // Flushes and closes; errors are seen here and not in the destructor.
  void close();

 private:
  H5File(int64_t id, std::filesystem::path shown, int64_t file_bytes);

  void write_dims(int64_t dataset, const std::vector<std::string>& dims) const;

  int64_t id_;  // hid_t of the library
  std::filesystem::path shown_;
  int64_t file_bytes_ = 0;  // of a file that is read
  std::vector<std::string> datasets_;
};

// "1.10.8": the HDF5 library that is loaded.
std::string hdf5_library();

// Where commit(keep_previous) keeps the file that was at `path`: "<stem>_prev<extension>".
std::filesystem::path previous_file(const std::filesystem::path& path);

// A file that appears whole: written beside its final name, sealed, read back (which checks every
// checksum), synced and renamed.
class H5PendingFile {
 public:
  H5PendingFile(const std::filesystem::path& path, bool overwrite);
  H5File& file() { return file_; }
  // `keep_previous`: the file that was there stays as previous_file().
  void commit(bool keep_previous = false);

 private:
  PendingFile pending_;
  H5File file_;
};

}  // namespace flotilla::io
