#include "io/latents_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/error.h"
#include "base/text.h"
#include "io/hdf5_file.h"

namespace flotilla::io {
namespace {

struct DatasetRule {
  std::string name;
  std::vector<std::string> dims;
  at::ScalarType type = at::kFloat;
};

const std::vector<DatasetRule>& schema() {
  const std::vector<std::string> tokens{"batch", "token", "channel"};
  const std::vector<std::string> video{"batch", "channel", "frame", "height", "width"};
  const std::vector<std::string> audio{"batch", "channel", "time", "mel"};
  static const std::vector<DatasetRule> rules{
      {latents::kVideoContext, tokens},
      {latents::kAudioContext, tokens},
      {latents::kNegativeVideoContext, tokens},
      {latents::kNegativeAudioContext, tokens},
      {latents::kInitialVideo, tokens},
      {latents::kInitialAudio, tokens},
      {latents::kStage1Video, video},
      {latents::kStage1Audio, audio},
      {latents::kUpscaledVideo, video},
      {latents::kStage2Video, video},
      {latents::kStage2Audio, audio},
      {latents::kDecodedVideo, {"frame", "height", "width", "rgb"}, at::kByte},
      {latents::kDecodedAudio, {"channel", "sample"}},
  };
  return rules;
}

// Null for a name outside of the schema.
const DatasetRule* find_rule(const std::string& name) {
  const auto& rules = schema();
  const auto found =
      std::find_if(rules.begin(), rules.end(), [&](const auto& rule) { return rule.name == name; });
  return found == rules.end() ? nullptr : &*found;
}

bool is_resume(const std::string& name) { return name.starts_with(latents::kResumeGroup); }

std::vector<std::string> numbered_dims(int64_t count) {
  std::vector<std::string> dims;
  for (int64_t i = 0; i < count; ++i) dims.push_back(fmt::format("axis_{}", i));
  return dims;
}

void write_tensor(H5File& out, const std::string& name, const at::Tensor& tensor) {
  if (is_resume(name)) return out.write(name, tensor, numbered_dims(tensor.dim()));
  const DatasetRule* rule = find_rule(name);
  check_internal(rule != nullptr, fmt::format("\"{}\" is a dataset of the schema", name));
  check_internal(tensor.dim() == static_cast<int64_t>(rule->dims.size()),
                 fmt::format("\"{}\" has the axes {}", name, rule->dims));
  check_internal((tensor.scalar_type() == at::kByte) == (rule->type == at::kByte),
                 fmt::format("\"{}\" has the element type {}", name, c10::toString(rule->type)));
  out.write(name, tensor, rule->dims);
}

template <typename Value>
Value require(const std::filesystem::path& path, const char* key,
              const std::optional<Value>& value) {
  if (!value)
    fail(ErrorKind::input,
         fmt::format("\"{}\": the attribute \"{}\" is missing", path.string(), key));
  return *value;
}

void check_version(const std::filesystem::path& path, const H5File& in) {
  const std::optional<int64_t> version = in.read_integer("", "format_version");
  if (!version) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" is an HDF5 file, but not one of ours: no format_version",
                     path.string()));
  }
  if (*version != kLatentsFormatVersion) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" has format_version {}; this program reads {}. Use the version that "
                     "wrote it",
                     path.string(), *version, kLatentsFormatVersion));
  }
}

at::Tensor read_tensor(const std::filesystem::path& path, const H5File& in,
                       const std::string& name) {
  at::Tensor tensor = in.read(name);
  const DatasetRule* rule = find_rule(name);
  if (rule != nullptr && (tensor.dim() != static_cast<int64_t>(rule->dims.size()) ||
                          tensor.scalar_type() != rule->type)) {
    fail(ErrorKind::input,
         fmt::format("\"{}\": dataset \"{}\" is {} with {} axes; {} with the axes {} is expected",
                     path.string(), name, c10::toString(tensor.scalar_type()), tensor.dim(),
                     c10::toString(rule->type), rule->dims));
  }
  return tensor;
}

}  // namespace

void write_latents(const std::filesystem::path& path, const LatentsFile& file, bool overwrite,
                   bool keep_previous) {
  H5PendingFile pending(path, overwrite);
  H5File& out = pending.file();
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  out.write_integer("", "format_version", kLatentsFormatVersion);
  out.write_text("", "flotilla_version", file.flotilla_version);
  out.write_text("", "job_yaml", file.job_yaml);
  if (file.original_prompt) out.write_text("", "original_prompt", *file.original_prompt);
  out.write_text("", "checkpoint_digest", file.checkpoint_digest);
  out.write_integer("", "seed", file.seed);
  out.write_integer("", "world", file.world);
  if (file.restart_count) out.write_integer("", "restart_count", *file.restart_count);
  out.write_text("", "created", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now)));
  for (const auto& [name, tensor] : file.tensors) write_tensor(out, name, tensor);
  if (file.has(latents::kDecodedAudio)) {
    FLOTILLA_ASSERT(file.sample_rate > 0);
    out.write_integer(latents::kDecodedAudio, "sample_rate", file.sample_rate);
  }
  if (!file.resume_integers.empty() || !file.resume_texts.empty()) out.make_group("resume");
  for (const auto& [key, value] : file.resume_integers) out.write_integer("resume", key, value);
  for (const auto& [key, value] : file.resume_texts) out.write_text("resume", key, value);
  pending.commit(keep_previous);
}

LatentsFile read_latents(const std::filesystem::path& path, const std::vector<std::string>& names) {
  const H5File in = H5File::open_sealed(path);
  check_version(path, in);
  LatentsFile file;
  file.flotilla_version = require(path, "flotilla_version", in.read_text("", "flotilla_version"));
  file.job_yaml = require(path, "job_yaml", in.read_text("", "job_yaml"));
  // Attributes have no checksum.
  if (!is_valid_utf8(file.job_yaml))
    fail(ErrorKind::input,
         fmt::format("\"{}\": its attribute \"job_yaml\" is damaged", path.string()));
  file.original_prompt = in.read_text("", "original_prompt");
  file.checkpoint_digest =
      require(path, "checkpoint_digest", in.read_text("", "checkpoint_digest"));
  file.seed = require(path, "seed", in.read_integer("", "seed"));
  file.world = require(path, "world", in.read_integer("", "world"));
  file.restart_count = in.read_integer("", "restart_count");
  file.created = require(path, "created", in.read_text("", "created"));
  const std::vector<std::string> there = in.datasets();
  for (const std::string& name : names) {
    if (!std::binary_search(there.begin(), there.end(), name)) {
      fail(ErrorKind::input,
           fmt::format("\"{}\" has no dataset \"{}\"; it has {}", path.string(), name,
                       there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", "))));
    }
  }
  for (const std::string& name : there) {
    const bool wanted = names.empty() || std::find(names.begin(), names.end(), name) != names.end();
    if (wanted && (is_resume(name) || find_rule(name) != nullptr))
      file.tensors[name] = read_tensor(path, in, name);
  }
  if (file.has(latents::kDecodedAudio)) {
    file.sample_rate = require(path, "decoded/audio:sample_rate",
                               in.read_integer(latents::kDecodedAudio, "sample_rate"));
  }
  for (const std::string& key : in.attributes("resume")) {
    if (in.is_text("resume", key)) {
      file.resume_texts[key] = *in.read_text("resume", key);
    } else {
      file.resume_integers[key] = *in.read_integer("resume", key);
    }
  }
  return file;
}

}  // namespace flotilla::io
