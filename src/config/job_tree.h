// A job as a tree of YAML, before it becomes a Job: the steps of load.h, for those who make jobs
// out of parts (sweep.h).
#pragma once

#include <filesystem>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>

#include "config/load.h"
#include "config/problems.h"
#include "config/yaml_tree.h"

namespace flotilla::config {

struct JobTree {
  std::shared_ptr<const Source> source;  // what messages about the job as a whole name
  Node root;
};

// Errors (ErrorKind::config): it is gone.
std::filesystem::path working_folder();
// The text; parse_yaml() refuses what is too large.
std::string read_yaml_stream(std::istream& in);
// `what`: "job file", for messages. Errors (ErrorKind::config): it cannot be read.
std::string read_yaml_file(const std::filesystem::path& file, std::string_view what);
std::shared_ptr<const Source> file_source(const std::filesystem::path& file);

// Throws all problems so far when the tree is no map, nor empty.
void check_is_job(const JobTree& tree, Problems& problems);
// The job and all checks that need no file but itself; what is wrong goes to `problems`.
LoadedJob load_job_tree(const JobTree& tree, Problems& problems);

}  // namespace flotilla::config
