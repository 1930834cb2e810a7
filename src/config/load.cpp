#include "config/load.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <utility>

#include "config/reader.h"
#include "config/validate.h"
#include "config/values.h"
#include "config/yaml_text.h"
#include "config/yaml_tree.h"

namespace flotilla::config {
namespace fs = std::filesystem;
namespace {

fs::path working_folder() {
  std::error_code error;
  fs::path folder = fs::current_path(error);
  if (error) fail(ErrorKind::config, "the working folder is gone: " + error.message());
  return folder;
}

// One byte more than allowed is enough to refuse a file that is too large.
std::string read_limited(std::istream& in) {
  std::string text(kMaxYamlBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

std::string read_job_file(const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error)) {
    fail(ErrorKind::config, fmt::format("{}: is a folder; expected a job file", file.string()));
  }
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    fail(ErrorKind::config,
         fmt::format("{}: the job file cannot be read: {}", file.string(), std::strerror(errno)));
  }
  return read_limited(in);
}

// The default output counts from the same folder as the paths of the file.
void make_paths_absolute(Job& job, const fs::path& base) {
  if (job.output.path.is_relative()) job.output.path = absolute_path(job.output.path, base);
}

LoadedJob load_from(std::string_view text, std::shared_ptr<const Source> source,
                    std::span<const Override> overrides) {
  Problems problems;
  Node tree = parse_yaml(text, source, problems);
  if (tree.kind == Node::Kind::broken) problems.throw_if_any(ErrorKind::config);
  if (tree.kind == Node::Kind::null && overrides.empty()) {
    problems.add({source, 0, 0}, "", "holds no keys; a job needs prompt and models at least");
    problems.throw_if_any(ErrorKind::config);
  }
  if (tree.kind != Node::Kind::map && tree.kind != Node::Kind::null) {
    problems.add(tree.place, "",
                 found_text(tree) + "; expected a map, the keys of a job: \"prompt: ...\"");
    problems.throw_if_any(ErrorKind::config);  // what is missing in it would only hide that
  }
  apply_overrides(tree, overrides, working_folder(), problems);
  LoadedJob loaded{.job = {}, .origins = Origins(Place{source, 0, 0})};
  read_job(tree, loaded.job, loaded.origins, problems);
  make_paths_absolute(loaded.job, source->base);
  complete_job(loaded.job, loaded.origins, problems);
  check_job(loaded.job, loaded.origins, problems);
  problems.throw_if_any(ErrorKind::config);
  return loaded;
}

}  // namespace

LoadedJob load_job(const fs::path& file, std::span<const Override> overrides) {
  if (file == "-") {
    return load_from(
        read_limited(std::cin),
        std::make_shared<const Source>(Source{
            .name = "standard input", .base = working_folder(), .has_lines = true, .file = {}}),
        overrides);
  }
  const std::string text = read_job_file(file);
  const fs::path full = absolute_path(file, working_folder());
  return load_from(
      text,
      std::make_shared<const Source>(Source{
          .name = file.string(), .base = full.parent_path(), .has_lines = true, .file = full}),
      overrides);
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
