// The files that a job names, with their keys: one list for the checks of names and of presence.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/job.h"

namespace flotilla::config {

enum class FileKind { file, folder, file_or_folder };

struct NamedFile {
  std::string key;
  std::filesystem::path path;
  FileKind kind = FileKind::file;
};

// Only names that are given and that the job's pipeline uses.
std::vector<NamedFile> input_files(const Job& job);
std::vector<NamedFile> output_files(const Job& job);

}  // namespace flotilla::config
