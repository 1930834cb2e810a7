#include "pipeline/resume.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "config/load.h"
#include "config/writer.h"
#include "io/hdf5_file.h"

namespace flotilla::pipeline {
namespace fs = std::filesystem;
namespace {

FoundCheckpoint read_checkpoint(const fs::path& path) {
  FoundCheckpoint found{path, io::read_latents(path)};
  with_context(fmt::format("\"{}\"", path.string()), [&] { take_state(found.file); });
  return found;
}

// Keys by their beginnings that change no latent, or only the order of sums. The files of models
// go by their digest, which is compared apart.
constexpr std::array<std::string_view, 14> kFreeKeys = {"schema_version",
                                                        "output.",
                                                        "checkpoint.",
                                                        "limits.",
                                                        "decoder.",
                                                        "sp.",
                                                        "threads",
                                                        "graphs",
                                                        "offload",
                                                        "allow_",
                                                        "text.parallel",
                                                        "text.strict_length",
                                                        "stage_1.guidance_groups",
                                                        "stage_1.parallel"};

bool changes_latents(std::string_view key) {
  if (key.starts_with("models.")) return key == "models.text_encoder" || key.ends_with(".strength");
  return std::none_of(kFreeKeys.begin(), kFreeKeys.end(),
                      [&](std::string_view start) { return key.starts_with(start); });
}

std::map<std::string, std::string> keys_that_count(const config::Job& job) {
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : config::dotted_values(job)) {
    if (changes_latents(key)) values[key] = value;
  }
  return values;
}

// "seed is 3 there and 4 here", for each key.
std::vector<std::string> differences(const std::map<std::string, std::string>& there,
                                     const std::map<std::string, std::string>& here) {
  std::map<std::string, std::array<std::string, 2>> both;
  for (const auto& [key, value] : there) both[key][0] = value;
  for (const auto& [key, value] : here) both[key][1] = value;
  const auto shown = [](const std::string& value) { return value.empty() ? "empty" : value; };
  std::vector<std::string> lines;
  for (const auto& [key, values] : both) {
    if (values[0] == values[1]) continue;
    lines.push_back(fmt::format("{} is {} there and {} here", key, excerpt(shown(values[0])),
                                excerpt(shown(values[1]))));
  }
  return lines;
}

// What share_state() sends ahead of the tensors.
std::string describe(const io::LatentsFile& file) {
  nlohmann::json json = {{"texts", file.resume_texts}, {"integers", file.resume_integers}};
  json["tensors"] = nlohmann::json::array();
  for (const auto& [name, tensor] : file.tensors) {
    json["tensors"].push_back({{"name", name},
                               {"shape", tensor.sizes().vec()},
                               {"bytes", tensor.scalar_type() == at::kByte}});
  }
  return json.dump();
}

io::LatentsFile prepare_receipt(const std::string& description) {
  const auto json = nlohmann::json::parse(description);
  io::LatentsFile file;
  file.resume_texts = json.at("texts").get<std::map<std::string, std::string>>();
  file.resume_integers = json.at("integers").get<std::map<std::string, int64_t>>();
  for (const auto& tensor : json.at("tensors")) {
    file.tensors[tensor.at("name")] =
        at::empty(tensor.at("shape").get<std::vector<int64_t>>(),
                  tensor.at("bytes").get<bool>() ? at::kByte : at::kFloat);
  }
  return file;
}

}  // namespace

std::optional<FoundCheckpoint> find_checkpoint(const config::Job& job) {
  const auto& [path, every_steps, resume] = job.checkpoint;
  if (resume == config::Resume::never) return std::nullopt;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    if (resume == config::Resume::must)
      fail(ErrorKind::input,
           fmt::format("there is no checkpoint \"{}\" to go on from", path.string()));
    log::info("resume", "no checkpoint \"{}\" yet: from the beginning", path.string());
    return std::nullopt;
  }
  std::string problem;
  try {
    return read_checkpoint(path);
  } catch (const Error& error) {
    problem = error.what();
  }
  const fs::path previous = io::previous_file(path);
  if (fs::exists(previous, ignored)) {
    try {
      FoundCheckpoint found = read_checkpoint(previous);
      found.is_previous = true;
      log::warn("resume", "{}; going on from the one before it, \"{}\"", problem,
                previous.string());
      return found;
    } catch (const Error& error) {
      problem += fmt::format("; {}", error.what());
    }
  }
  if (resume == config::Resume::automatic && job.output.overwrite) {
    log::warn("resume", "{}; from the beginning", problem);
    return std::nullopt;
  }
  fail(ErrorKind::input,
       fmt::format("no checkpoint to go on from: {}; remove it, or use checkpoint.resume: auto "
                   "with --overwrite to start from the beginning",
                   problem));
}

config::Job stored_job(config::Job job, const Plan& plan) {
  if (const auto& tiles = plan.stage_2.tiles) {
    const auto& [frames, rows, columns] = tiles->counts;
    job.stage_2.tiles.grid = config::TileGrid{frames, rows, columns};
  }
  return job;
}

void check_same_job(const FoundCheckpoint& found, const config::Job& job, const Plan& plan,
                    const std::string& digest) {
  const std::string name = found.path.string();
  const auto theirs = config::load_job_text(found.file.job_yaml, name + ": job_yaml", "/");
  auto lines = differences(keys_that_count(theirs.job), keys_that_count(stored_job(job, plan)));
  if (found.file.checkpoint_digest != digest)
    lines.push_back(fmt::format("models (or LoRAs) have the digest {} there and {} here",
                                found.file.checkpoint_digest, digest));
  if (lines.empty()) return;
  fail(ErrorKind::input,
       fmt::format("the checkpoint \"{}\" is of another job: {}; take another checkpoint.path, or "
                   "start from the beginning with checkpoint.resume: never and --overwrite",
                   name, fmt::join(lines, "; ")));
}

RunState share_state(const std::optional<FoundCheckpoint>& found, const Ranks& ranks) {
  if (ranks.context == nullptr) return found ? take_state(found->file) : RunState();
  comm::Communicator& world = ranks.context->world();
  const std::string description = world.broadcast(found ? describe(found->file) : "", 0);
  if (description.empty()) return {};
  io::LatentsFile file = ranks.is_driver() ? found->file : prepare_receipt(description);
  for (auto& [tensor_name, tensor] : file.tensors) world.broadcast(tensor, 0);
  return take_state(file);
}

}  // namespace flotilla::pipeline
