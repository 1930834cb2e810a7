// A checkpoint: one safetensors file, or the shards of one (Hugging Face index), as one set of
// names. Opening reads headers only, or takes those that another process has read. Reading is
// positional (pread), so it is thread-safe and needs no mapping.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "loader/safetensors.h"

namespace flotilla::loader {

// The header of one file of a checkpoint.
struct FileHeader {
  std::filesystem::path path;
  HeaderText text;
  int64_t bytes_read = 0;  // by this process: 0 where another one has read it
};
// `path`: a .safetensors file, or a folder with model.safetensors or model.safetensors.index.json
// and its shards. Errors (ErrorKind::input): see read_header_text(); a missing or odd index; a
// missing shard.
std::vector<FileHeader> read_headers(const std::filesystem::path& path);
// How headers come to a process. Another way: parallel/shared_weights.h.
using ReadHeaders = std::function<std::vector<FileHeader>(const std::filesystem::path&)>;

class Checkpoint {
 public:
  // Errors (ErrorKind::input): see read_headers() and parse_header(); a name that two shards hold;
  // a file that is not the one that `read` saw. Collective if `read` is.
  static std::shared_ptr<const Checkpoint> open(const std::filesystem::path& path,
                                                const ReadHeaders& read = read_headers);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  // Whether any tensor's name starts with `prefix`.
  bool has_prefix(const std::string& prefix) const;
  // nullptr when absent.
  const std::string* metadata(const std::string& key) const;
  // The JSON of metadata "config". Errors (ErrorKind::input): absent, or not JSON.
  const nlohmann::json& config() const;
  // "2.3.0", or "" when the file has none.
  std::string model_version() const;
  // Digest (hex) of headers and sizes: identifies the file without reading the weights.
  std::string digest() const;
  // Which files these are on this machine, and as of when: two checkpoints with the same identity
  // hold the same weights.
  std::string identity() const;
  // Whether the paths lead to these files still, unchanged since they were opened.
  bool is_current() const;
  int64_t file_bytes() const;
  // Weight bytes read so far through this object (headers not counted).
  int64_t bytes_read() const;
  // Bytes of headers that this process read to open it.
  int64_t header_bytes_read() const;

  // Reads `name` into `out`, a contiguous CPU tensor of the tensor's shape and any
  // floating dtype; converts block by block, without a second full copy.
  void read_into(const std::string& name, const at::Tensor& out) const;
  // Reads the rows (of dimension 0; a scalar is one row) of `name` from `first_row` on into `out`,
  // [rows, ...], otherwise as read_into().
  void read_rows_into(const std::string& name, int64_t first_row, const at::Tensor& out) const;
  // Reads a whole tensor in its stored dtype, on the CPU. Errors (ErrorKind::input): no such name.
  at::Tensor read(const std::string& name) const;
  // Rows [begin, end) of a tensor with at least one dimension, otherwise as read().
  at::Tensor read_rows(const std::string& name, int64_t begin, int64_t end) const;

 private:
  struct File;
  explicit Checkpoint(std::filesystem::path path);
  void add_file(const FileHeader& file);
  const TensorInfo& info_of(const std::string& name) const;
  // Fills `out` with the elements of `name` from the element `first` on.
  void read_elements(const std::string& name, int64_t first, const at::Tensor& out) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, size_t> file_of_;
  mutable std::unique_ptr<nlohmann::json> config_;
};

}  // namespace flotilla::loader
