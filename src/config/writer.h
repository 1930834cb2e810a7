// Writes a Job as YAML: --print-config, the log's config in force, job_yaml in HDF5 files.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/job.h"

namespace flotilla::config {

// All keys that the job's pipeline uses, with their values. Reading the text gives an equal job,
// wherever it is read, since the paths of a loaded job are absolute.
std::string to_yaml(const Job& job);

// The same keys with dots in their names and elements of lists by number ("video.width",
// "images[0].path"), each with its value as YAML text.
std::vector<std::pair<std::string, std::string>> dotted_values(const Job& job);

}  // namespace flotilla::config
