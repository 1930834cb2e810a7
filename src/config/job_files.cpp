#include "config/job_files.h"

#include <fmt/format.h>

#include <fstream>
#include <utility>

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
  drop_empty(files);
  return files;
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
