#include "app/stored_job.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "io/latents_file.h"
#include "io/mp4_info.h"

namespace flotilla::app {
namespace {

// What the first run was asked to leave beside the clip, and how it was to stop, is not asked for
// again.
std::vector<config::Override> without_other_outputs() {
  return {{"output.overwrite", "false", "--from", false},
          {"output.latents", "", "--from", false},
          {"output.metrics", "", "--from", false},
          {"output.contact_sheet", "", "--from", false},
          {"output.save_frames", "false", "--from", false},
          {"checkpoint.path", "", "--from", false},
          {"checkpoint.every_steps", "0", "--from", false},
          {"checkpoint.resume", "never", "--from", false},
          {"limits.max_hours", "", "--from", false},
          {"limits.stop_file", "", "--from", false}};
}

bool is_hdf5(const std::string& path) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  std::array<char, kSignature.size()> head{};
  std::ifstream in(path, std::ios::binary);
  in.read(head.data(), head.size());
  return in.good() && std::string_view(head.data(), head.size()) == kSignature;
}

// As config::to_yaml() begins, or the line that text.enhance puts in front.
bool is_job(std::string_view text) {
  return text.starts_with("schema_version:") || text.starts_with("# original_prompt:");
}

std::string job_of_clip(const std::string& path) {
  const std::string comment = io::read_mp4_info(path).comment;
  if (is_job(comment)) return comment;
  const std::string found = comment.empty()
                                ? "it has no comment"
                                : fmt::format("its comment is \"{}\"", excerpt(comment));
  fail(ErrorKind::input,
       fmt::format("--from: \"{}\" does not hold the job that made it: {}; it is a clip of another "
                   "program, or a program has rewritten it. The latents file of the run holds the "
                   "job too",
                   path, found));
}

}  // namespace

config::LoadedJob load_checkpoint_job(const std::string& path,
                                      const std::vector<config::Override>& overrides) {
  const io::LatentsFile file = io::read_latents(path, {io::latents::kResumeGenerator});
  return config::load_job_text(file.job_yaml, path + ": job_yaml", ".", overrides);
}

config::LoadedJob load_job_from(const std::string& path,
                                const std::vector<config::Override>& overrides) {
  const std::string text = is_hdf5(path) ? io::read_latents(path).job_yaml : job_of_clip(path);
  const std::string name = path + ": its job";
  try {
    config::load_job_text(text, name, "/");
  } catch (const Error& error) {
    fail(ErrorKind::input, fmt::format("the job in \"{}\" is damaged, or of another version: {}",
                                       path, error.message()));
  }
  auto all = without_other_outputs();
  all.insert(all.end(), overrides.begin(), overrides.end());
  return config::load_job_text(text, name, ".", all);
}

}  // namespace flotilla::app
