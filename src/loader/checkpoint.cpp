#include "loader/checkpoint.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "loader/file_time.h"

namespace flotilla::loader {
namespace fs = std::filesystem;
namespace {

// Size of the bounce buffer of a converting read.
constexpr int64_t kBlockBytes = 8 << 20;

void read_exactly(int fd, const fs::path& path, char* out, int64_t bytes, int64_t offset) {
  while (bytes > 0) {
    const ssize_t got =
        ::pread(fd, out, static_cast<size_t>(std::min<int64_t>(bytes, 1 << 30)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      fail(ErrorKind::input,
           fmt::format("reading \"{}\" failed at byte {}: {}", path.string(), offset,
                       got == 0 ? "the file has become shorter" : std::strerror(errno)));
    }
    out += got;
    offset += got;
    bytes -= got;
  }
}

std::set<std::string> shards_of_index(const fs::path& index_path) {
  std::ifstream in(index_path);
  const auto index = nlohmann::json::parse(in, nullptr, false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail(ErrorKind::input, fmt::format("\"{}\" has no \"weight_map\"", index_path.string()));
  }
  std::set<std::string> shards;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : std::string();
    // A shard lies in the folder itself; anything else would let the index name files elsewhere.
    if (file.empty() || fs::path(file).filename() != file) {
      fail(ErrorKind::input,
           fmt::format("\"{}\" names the shard \"{}\", which is not a plain file name",
                       index_path.string(), excerpt(file)));
    }
    shards.insert(file);
  }
  return shards;
}

bool same_version(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         modified_ns(a) == modified_ns(b);
}

std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code code;
  if (!fs::is_directory(path, code)) return {path};
  const fs::path index = path / "model.safetensors.index.json";
  if (!fs::exists(index, code)) {
    if (fs::exists(path / "model.safetensors", code)) return {path / "model.safetensors"};
    fail(ErrorKind::input, fmt::format("folder \"{}\" has neither model.safetensors nor "
                                       "model.safetensors.index.json",
                                       path.string()));
  }
  std::vector<fs::path> files;
  for (const auto& shard : shards_of_index(index)) files.push_back(path / shard);
  return files;
}

}  // namespace

struct Checkpoint::File {
  fs::path path;
  SafetensorsHeader header;
  int fd = -1;
  struct stat status = {};  // when it was opened
  int64_t header_bytes_read = 0;
  std::atomic<int64_t> bytes_read{0};
  ~File() {
    if (fd >= 0) ::close(fd);
  }
};

Checkpoint::Checkpoint(fs::path path) : path_(std::move(path)) {}
Checkpoint::~Checkpoint() = default;

void Checkpoint::add_file(const FileHeader& from) {
  auto file = std::make_unique<File>();
  file->path = from.path;
  file->header = parse_header(from.path, from.text);
  file->header_bytes_read = from.bytes_read;
  file->fd = ::open(from.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file->fd < 0 || ::fstat(file->fd, &file->status) != 0) {
    fail(ErrorKind::input,
         fmt::format("cannot open \"{}\": {}", from.path.string(), std::strerror(errno)));
  }
  if (file->status.st_size != from.text.file_bytes ||
      modified_ns(file->status) != from.text.modified_ns) {
    fail(ErrorKind::input, fmt::format("\"{}\" is not the file whose header was read: it has "
                                       "changed, or is another one here",
                                       from.path.string()));
  }
  for (const auto& [name, info] : file->header.tensors) {
    if (!tensors_.emplace(name, info).second) {
      fail(ErrorKind::input,
           fmt::format("tensor \"{}\" is in two shards of \"{}\"", name, path_.string()));
    }
    file_of_.emplace(name, files_.size());
  }
  files_.push_back(std::move(file));
}

std::vector<FileHeader> read_headers(const fs::path& path) {
  std::vector<FileHeader> headers;
  for (const fs::path& file : files_of(path)) {
    HeaderText text = read_header_text(file);
    const auto bytes = static_cast<int64_t>(text.json.size());
    headers.push_back({file, std::move(text), bytes});
  }
  return headers;
}

std::shared_ptr<const Checkpoint> Checkpoint::open(const fs::path& path, const ReadHeaders& read) {
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint(path));
  for (const FileHeader& file : read(path)) checkpoint->add_file(file);
  return checkpoint;
}

bool Checkpoint::has_prefix(const std::string& prefix) const {
  const auto at = tensors_.lower_bound(prefix);
  return at != tensors_.end() && at->first.starts_with(prefix);
}

const std::string* Checkpoint::metadata(const std::string& key) const {
  for (const auto& file : files_) {
    const auto at = file->header.metadata.find(key);
    if (at != file->header.metadata.end()) return &at->second;
  }
  return nullptr;
}

const nlohmann::json& Checkpoint::config() const {
  if (!config_) {
    const std::string* text = metadata("config");
    if (text == nullptr) {
      fail(ErrorKind::input,
           fmt::format("\"{}\" has no \"config\" in its metadata; is it an official LTX-2 file?",
                       path_.string()));
    }
    auto parsed = nlohmann::json::parse(*text, nullptr, false);
    if (!parsed.is_object()) {
      fail(ErrorKind::input,
           fmt::format("the metadata \"config\" of \"{}\" is not a JSON object", path_.string()));
    }
    config_ = std::make_unique<nlohmann::json>(std::move(parsed));
  }
  return *config_;
}

std::string Checkpoint::model_version() const {
  const std::string* text = metadata("model_version");
  return text == nullptr ? std::string() : *text;
}

std::string Checkpoint::digest() const {
  uint64_t hash = kHashStart;
  for (const auto& file : files_) {
    hash =
        add_to_hash(hash, fmt::format("{}/{}", file->header.file_bytes, file->header.header_bytes));
    for (const auto& [key, value] : file->header.metadata)
      hash = add_to_hash(hash, key + "=" + value);
    for (const auto& [name, info] : file->header.tensors) {
      hash = add_to_hash(hash, fmt::format("{}{}{}:{}", name, shape_text(info.shape),
                                           c10::toString(info.dtype), info.begin));
    }
  }
  return hash_text(hash);
}

std::string Checkpoint::identity() const {
  std::string text;
  for (const auto& file : files_) {
    const struct stat& is = file->status;
    text += fmt::format("{}/{}/{}/{}.{:09};", is.st_dev, is.st_ino, is.st_size, is.st_mtim.tv_sec,
                        is.st_mtim.tv_nsec);
  }
  return text;
}

bool Checkpoint::is_current() const {
  return std::all_of(files_.begin(), files_.end(), [](const auto& file) {
    struct stat now = {};
    return ::stat(file->path.c_str(), &now) == 0 && same_version(now, file->status);
  });
}

int64_t Checkpoint::file_bytes() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->header.file_bytes;
  return bytes;
}

int64_t Checkpoint::bytes_read() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->bytes_read.load();
  return bytes;
}

int64_t Checkpoint::header_bytes_read() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->header_bytes_read;
  return bytes;
}

const TensorInfo& Checkpoint::info_of(const std::string& name) const {
  const auto at = tensors_.find(name);
  if (at == tensors_.end()) {
    fail(ErrorKind::input, fmt::format("\"{}\" has no tensor \"{}\"", path_.string(), name));
  }
  return at->second;
}

void Checkpoint::read_elements(const std::string& name, int64_t first,
                               const at::Tensor& out) const {
  const TensorInfo& info = tensors_.at(name);
  File& file = *files_[file_of_.at(name)];
  const int64_t element = static_cast<int64_t>(c10::elementSize(info.dtype));
  const int64_t begin = info.begin + first * element;
  FLOTILLA_ASSERT(out.is_contiguous() && out.device().is_cpu() &&
                  first + out.numel() <= info.numel());
  file.bytes_read += out.numel() * element;
  if (out.scalar_type() == info.dtype) {
    read_exactly(file.fd, file.path, static_cast<char*>(out.data_ptr()), out.numel() * element,
                 begin);
    return;
  }
  const int64_t block = kBlockBytes / element;
  const at::Tensor buffer =
      at::empty({std::min(block, out.numel())}, at::TensorOptions(info.dtype));
  const at::Tensor flat = out.view({-1});
  for (int64_t at = 0; at < out.numel(); at += block) {
    const int64_t count = std::min(block, out.numel() - at);
    read_exactly(file.fd, file.path, static_cast<char*>(buffer.data_ptr()), count * element,
                 begin + at * element);
    flat.narrow(0, at, count).copy_(buffer.narrow(0, 0, count));
  }
}

void Checkpoint::read_into(const std::string& name, const at::Tensor& out) const {
  FLOTILLA_ASSERT(out.numel() == info_of(name).numel());
  read_elements(name, 0, out);
}

void Checkpoint::read_rows_into(const std::string& name, int64_t first_row,
                                const at::Tensor& out) const {
  FLOTILLA_ASSERT(out.dim() > 0 && out.size(0) > 0);
  info_of(name);
  read_elements(name, first_row * (out.numel() / out.size(0)), out);
}

at::Tensor Checkpoint::read(const std::string& name) const {
  const TensorInfo& info = info_of(name);
  at::Tensor out = at::empty(info.shape, at::TensorOptions(info.dtype));
  read_elements(name, 0, out);
  return out;
}

at::Tensor Checkpoint::read_rows(const std::string& name, int64_t begin, int64_t end) const {
  const TensorInfo& info = info_of(name);
  FLOTILLA_ASSERT(!info.shape.empty() && 0 <= begin && begin < end && end <= info.shape[0]);
  std::vector<int64_t> shape = info.shape;
  shape[0] = end - begin;
  at::Tensor out = at::empty(shape, at::TensorOptions(info.dtype));
  read_elements(name, begin * (info.numel() / info.shape[0]), out);
  return out;
}

}  // namespace flotilla::loader
