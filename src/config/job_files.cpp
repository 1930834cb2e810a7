#include "config/job_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "base/temp_file.h"
#include "base/text.h"
#include "config/validate.h"

namespace flotilla::config {
namespace fs = std::filesystem;
namespace {

void drop_empty(std::vector<NamedFile>& files) {
  std::erase_if(files, [](const NamedFile& file) { return file.path.empty(); });
}

// What is wrong with an input, or "".
std::string file_problem(const NamedFile& named) {
  std::error_code error;
  const fs::file_status status = fs::status(named.path, error);
  const std::string path = named.path.string();
  if (status.type() == fs::file_type::not_found) return "no such file: " + path;
  if (error) return fmt::format("cannot be looked at: {}: {}", path, error.message());
  const bool is_folder = fs::is_directory(status);
  if (is_folder && named.kind == FileKind::file) {
    return fmt::format("is a folder; expected a file: {}", path);
  }
  if (!is_folder && named.kind == FileKind::folder) {
    return fmt::format("is no folder; expected one: {}", path);
  }
  if (!is_folder && !fs::is_regular_file(status)) return "is not a plain file: " + path;
  if (!is_folder && !std::ifstream(named.path, std::ios::binary)) {
    return "is there but cannot be read: " + path;
  }
  return "";
}

bool has_extension(const fs::path& path, std::initializer_list<std::string_view> allowed) {
  const std::string extension = to_lower(path.extension().string());
  return std::find(allowed.begin(), allowed.end(), extension) != allowed.end();
}

// One spelling for all paths to a file, be it there or not.
fs::path real_path(const fs::path& path) {
  std::error_code error;
  const fs::path target = follow_links(path);
  const fs::path real = fs::weakly_canonical(target, error);
  return error ? target : real;
}

// A name with what the disk says of it: asked once, compared with every other name.
struct FoundFile : NamedFile {
  explicit FoundFile(NamedFile named) : NamedFile(std::move(named)), real(real_path(path)) {
    std::error_code error;
    exists = fs::exists(path, error);
  }

  fs::path real;
  bool exists = false;
};

// Two that exist may also be names of one file without a link between them.
bool is_same_file(const FoundFile& a, const FoundFile& b) {
  std::error_code error;
  return a.real == b.real || (a.exists && b.exists && fs::equivalent(a.path, b.path, error));
}

// True when `file` is one of `folder`, at any depth or behind a link that lies in the folder.
bool is_file_inside(const FoundFile& file, const FoundFile& folder) {
  std::error_code error;
  if (!file.exists || !fs::is_directory(folder.path, error)) return false;
  const auto [top, rest] =
      std::mismatch(folder.real.begin(), folder.real.end(), file.real.begin(), file.real.end());
  if (top == folder.real.end()) return true;
  for (fs::directory_iterator entry(folder.path, error), end; entry != end;
       entry.increment(error)) {
    if (fs::equivalent(*entry, file.path, error)) return true;
  }
  return false;
}

// What writing `output` would do to one of `taken`, or "".
std::string name_problem(const FoundFile& output, const std::vector<FoundFile>& taken) {
  for (const auto& other : taken) {
    const bool may_be_folder = other.kind != FileKind::file;
    if (is_same_file(other, output)) {
      return fmt::format("is the same file as {}: {}", other.key, output.path.string());
    }
    if (may_be_folder && is_file_inside(output, other)) {
      return fmt::format("would replace a file of {}: {}", other.key, output.path.string());
    }
  }
  return "";
}

// The clip's extension chooses its container and is checked where the writers are known.
void check_extensions(const Job& job, const Origins& origins, Problems& problems) {
  const auto check = [&](const char* key, const fs::path& path,
                         std::initializer_list<std::string_view> allowed) {
    if (problems.concerns(key) || path.extension().empty() || has_extension(path, allowed)) return;
    problems.add(
        origins.place(key), key,
        fmt::format("\"{}\" is the extension of another kind of file; expected {}, or none",
                    path.extension().string(), fmt::join(allowed, " or ")));
  };
  check("output.latents", job.output.latents, {".h5", ".hdf5"});
  check("output.metrics", job.output.metrics, {".json", ".csv"});
  check("output.contact_sheet", job.output.contact_sheet, {".png"});
}

}  // namespace

std::vector<NamedFile> input_files(const Job& job) {
  const Models& models = job.models;
  std::vector<NamedFile> files = {
      {"models.checkpoint", models.checkpoint},
      {"models.transformer", models.transformer},
      {"models.video_vae", models.video_vae},
      {"models.audio_vae", models.audio_vae},
      {"models.spatial_upsampler", models.spatial_upsampler},
      {"models.text_encoder", models.text_encoder, FileKind::file_or_folder},
  };
  if (job.pipeline == Pipeline::ti2vid_two_stages) {
    files.push_back({"models.distilled_lora.path", models.distilled_lora.path});
  }
  for (size_t i = 0; i < models.loras.size(); ++i) {
    files.push_back({fmt::format("models.loras[{}].path", i), models.loras[i].path});
  }
  for (size_t i = 0; i < job.images.size(); ++i) {
    files.push_back({fmt::format("images[{}].path", i), job.images[i].path});
  }
  files.push_back({"text.enhancer", job.text.enhancer, FileKind::folder});
  drop_empty(files);
  return files;
}

std::vector<NamedFile> output_files(const Job& job) {
  std::vector<NamedFile> files = {
      {"output.path", job.output.path},         {"output.latents", job.output.latents},
      {"output.metrics", job.output.metrics},   {"output.contact_sheet", job.output.contact_sheet},
      {"checkpoint.path", job.checkpoint.path},
  };
  if (job.output.audio && has_extension(job.output.path, {".y4m"})) {
    files.push_back({"output.path", fs::path(job.output.path).replace_extension(".wav")});
  }
  drop_empty(files);
  return files;
}

void check_names(const Job& job, const Origins& origins, Problems& problems) {
  check_extensions(job, origins, problems);
  std::vector<NamedFile> inputs = input_files(job);
  if (const auto& source = origins.root().source; source && !source->file.empty()) {
    inputs.push_back({"the file that holds the job", source->file});
  }
  if (!job.limits.stop_file.empty()) inputs.push_back({"limits.stop_file", job.limits.stop_file});
  std::vector<FoundFile> taken(inputs.begin(), inputs.end());
  for (const NamedFile& named : output_files(job)) {
    const FoundFile output(named);
    if (auto problem = name_problem(output, taken);
        !problem.empty() && !problems.concerns(output.key)) {
      problems.add(origins.place(output.key), output.key, std::move(problem));
    }
    taken.push_back(output);
  }
}

void validate_files(const Job& job, const Origins& origins) {
  Problems problems;
  for (const auto& file : input_files(job)) {
    if (auto problem = file_problem(file); !problem.empty()) {
      problems.add(origins.place(file.key), file.key, std::move(problem));
    }
  }
  problems.throw_if_any(ErrorKind::input);
}

}  // namespace flotilla::config
