#include "pipeline/checkpoint_pool.h"

#include <algorithm>
#include <utility>

namespace flotilla::pipeline {
namespace {

// A sweep over LoRAs may pass by hundreds of files; each that is open takes a file descriptor.
constexpr size_t kMostFiles = 64;

}  // namespace

std::filesystem::path real_path(const std::filesystem::path& path) {
  std::error_code code;
  auto result = std::filesystem::weakly_canonical(path, code);
  return code ? path : result;
}

CheckpointPtr CheckpointPool::open(const std::filesystem::path& path, const Ranks& ranks) {
  return entry_of(path, ranks).file;
}

std::shared_ptr<const loader::LoraFile> CheckpointPool::open_lora(const std::filesystem::path& path,
                                                                  const Ranks& ranks) {
  Entry& entry = entry_of(path, ranks);
  if (!entry.lora) entry.lora = std::make_shared<loader::LoraFile>(entry.file);
  return entry.lora;
}

CheckpointPool::Entry& CheckpointPool::entry_of(const std::filesystem::path& path,
                                                const Ranks& ranks) {
  const auto key = real_path(path);
  const auto found = entries_.find(key);
  const bool is_stale =
      found == entries_.end() || (ranks.is_driver() && !found->second.file->is_current());
  if (!ranks.any(is_stale)) {
    found->second.last_use = ++uses_;
    return found->second;
  }
  entries_.erase(key);
  Entry entry{.file = loader::Checkpoint::open(path, ranks.read_headers()), .last_use = ++uses_};
  if (entries_.size() >= kMostFiles) drop_oldest();
  return entries_[key] = std::move(entry);
}

void CheckpointPool::drop_oldest() {
  entries_.erase(std::min_element(
      entries_.begin(), entries_.end(),
      [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
}

}  // namespace flotilla::pipeline
