#include "config/load.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "config/job_tree.h"
#include "config/reader.h"
#include "config/validate.h"
#include "config/values.h"
#include "config/yaml_text.h"
#include "config/yaml_tree.h"

namespace flotilla::config {
namespace fs = std::filesystem;
namespace {

// The default output counts from the same folder as the paths of the file.
void make_paths_absolute(Job& job, const fs::path& base) {
  if (job.output.path.is_relative()) job.output.path = absolute_path(job.output.path, base);
}

LoadedJob load_from(std::string_view text, std::shared_ptr<const Source> source,
                    std::span<const Override> overrides) {
  Problems problems;
  JobTree tree{source, parse_yaml(text, source, problems)};
  if (tree.root.kind == Node::Kind::null && overrides.empty()) {
    problems.add({source, 0, 0}, "", "holds no keys; a job needs prompt and models at least");
    problems.throw_if_any(ErrorKind::config);
  }
  check_is_job(tree, problems);
  apply_overrides(tree.root, overrides, working_folder(), problems);
  LoadedJob loaded = load_job_tree(tree, problems);
  problems.throw_if_any(ErrorKind::config);
  return loaded;
}

}  // namespace

fs::path working_folder() {
  std::error_code error;
  fs::path folder = fs::current_path(error);
  if (error) fail(ErrorKind::config, "the working folder is gone: " + error.message());
  return folder;
}

// One byte more than allowed is enough to refuse a text that is too large.
std::string read_yaml_stream(std::istream& in) {
  std::string text(kMaxYamlBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

std::string read_yaml_file(const fs::path& file, std::string_view what) {
  std::error_code error;
  if (fs::is_directory(file, error)) {
    fail(ErrorKind::config, fmt::format("{}: is a folder; expected a {}", file.string(), what));
  }
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    fail(ErrorKind::config,
         fmt::format("{}: the {} cannot be read: {}", file.string(), what, std::strerror(errno)));
  }
  return read_yaml_stream(in);
}

std::shared_ptr<const Source> file_source(const fs::path& file) {
  const fs::path full = absolute_path(file, working_folder());
  return std::make_shared<const Source>(
      Source{.name = file.string(), .base = full.parent_path(), .has_lines = true, .file = full});
}

void check_is_job(const JobTree& tree, Problems& problems) {
  const Node& root = tree.root;
  if (root.kind == Node::Kind::broken) problems.throw_if_any(ErrorKind::config);
  if (root.kind == Node::Kind::map || root.kind == Node::Kind::null) return;
  problems.add(root.place, "",
               found_text(root) + "; expected a map, the keys of a job: \"prompt: ...\"");
  problems.throw_if_any(ErrorKind::config);  // what is missing in it would only hide that
}

LoadedJob load_job_tree(const JobTree& tree, Problems& problems) {
  LoadedJob loaded{.job = {}, .origins = Origins(Place{tree.source, 0, 0})};
  read_job(tree.root, loaded.job, loaded.origins, problems);
  make_paths_absolute(loaded.job, tree.source->base);
  complete_job(loaded.job, loaded.origins, problems);
  check_job(loaded.job, loaded.origins, problems);
  return loaded;
}

LoadedJob load_job(const fs::path& file, std::span<const Override> overrides) {
  if (file == "-") {
    return load_from(
        read_yaml_stream(std::cin),
        std::make_shared<const Source>(Source{
            .name = "standard input", .base = working_folder(), .has_lines = true, .file = {}}),
        overrides);
  }
  return load_from(read_yaml_file(file, "job file"), file_source(file), overrides);
}

LoadedJob load_job_text(std::string_view text, const std::string& name, const fs::path& base,
                        std::span<const Override> overrides, const fs::path& file) {
  const fs::path folder = working_folder();
  return load_from(text,
                   std::make_shared<const Source>(
                       Source{.name = name,
                              .base = absolute_path(base, folder),
                              .has_lines = true,
                              .file = file.empty() ? file : absolute_path(file, folder)}),
                   overrides);
}

}  // namespace flotilla::config
