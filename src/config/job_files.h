// The files that a job names, with their keys: one list for the checks of names and of presence.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/job.h"
#include "config/origins.h"
#include "config/problems.h"

namespace flotilla::config {

enum class FileKind { file, folder, file_or_folder };

struct NamedFile {
  std::string key;
  std::filesystem::path path;
  FileKind kind = FileKind::file;
};

// Only names that are given and that the job's pipeline uses. The sound beside a .y4m clip, which
// has no key of its own, goes by that of the clip.
std::vector<NamedFile> input_files(const Job& job);
std::vector<NamedFile> output_files(const Job& job);

// No output may be another output, an input, a file of an input folder, or the job file, whatever
// links lead there, nor have the extension of another kind of file. Keys that are in `problems`
// already are left alone.
void check_names(const Job& job, const Origins& origins, Problems& problems);

}  // namespace flotilla::config
