// The files that a process has open, by their real paths, so that every file is opened once
// whichever stages and jobs use it. A file that has changed on the disk is opened anew.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>

#include "loader/checkpoint.h"
#include "loader/lora.h"
#include "pipeline/ranks.h"

namespace flotilla::pipeline {

using CheckpointPtr = std::shared_ptr<const loader::Checkpoint>;

class CheckpointPool {
 public:
  // The driver alone looks at the disk and reads headers; the others take them from it, and its
  // errors too. Collective, in the same order on all ranks; begins with an agreement, so a rank
  // that failed before it may go to an agreement of its caller. Errors (ErrorKind::input): see
  // Checkpoint::open().
  CheckpointPtr open(const std::filesystem::path& path, const Ranks& ranks = {});
  // Errors: also those of LoraFile.
  std::shared_ptr<const loader::LoraFile> open_lora(const std::filesystem::path& path,
                                                    const Ranks& ranks = {});
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    CheckpointPtr file;
    std::shared_ptr<const loader::LoraFile> lora;  // where it was opened as one
    int64_t last_use = 0;
  };
  Entry& entry_of(const std::filesystem::path& path, const Ranks& ranks);
  void drop_oldest();

  std::map<std::filesystem::path, Entry> entries_;
  int64_t uses_ = 0;
};

// Links resolved; `path` itself where that fails.
std::filesystem::path real_path(const std::filesystem::path& path);

}  // namespace flotilla::pipeline
