// From a job file and the options of the command line to a checked Job: the entry to this room.
// Order: defaults < file < overrides. See docs/configuration.md for the format.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "config/job.h"
#include "config/origins.h"
#include "config/overrides.h"

namespace flotilla::config {

struct LoadedJob {
  Job job;
  Origins origins;  // for validate_files(), check_supported() and messages of later checks
};

// Reads `file` ("-": standard input) and applies `overrides`. The result is complete and obeys
// every rule that needs no model file. Relative paths of the file count from its folder (standard
// input: the working folder), those of overrides from the working folder; the job's paths are
// absolute. Errors (ErrorKind::config): all problems of the file and the overrides together, one
// line each.
LoadedJob load_job(const std::filesystem::path& file, std::span<const Override> overrides = {});

// The same with the text at hand. `name` stands in messages; relative paths count from `base`;
// `file`, if any, is the one that holds the text, and no output may take its place.
LoadedJob load_job_text(std::string_view text, const std::string& name,
                        const std::filesystem::path& base, std::span<const Override> overrides = {},
                        const std::filesystem::path& file = {});

}  // namespace flotilla::config
