// flotilla inspect: what a file is, by its content and not by its name, and what is in it.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

#include "app/command.h"
#include "app/inspect_weights.h"
#include "app/options.h"
#include "app/report.h"
#include "base/error.h"
#include "base/text.h"
#include "io/latents_file.h"
#include "io/mp4_info.h"
#include "pipeline/run_state.h"

namespace flotilla::app {
namespace {

namespace fs = std::filesystem;

constexpr Usage kUsage = {
    "inspect", "flotilla inspect FILE [--json] [--tensors]",
    "Tells what FILE is and what is in it: a checkpoint (and whether this version implements it),\n"
    "a LoRA, the folder of a text encoder, latents or the checkpoint of a run, a clip with the "
    "job\n"
    "that made it, the metrics of a run. Weights are not read. Anything else, or a damaged file, "
    "is\n"
    "an error (exit code 3).",
    "FILE"};

enum class Kind { weights, text_encoder, hdf5, mp4, json };

constexpr size_t kHeadBytes = 64;
constexpr int64_t kMaxMetricsBytes = 64 << 20;

[[noreturn]] void fail_input(const fs::path& path, std::string_view what) {
  fail(ErrorKind::input, fmt::format("\"{}\" {}", path.string(), what));
}

Kind kind_of_folder(const fs::path& path) {
  std::error_code code;
  return fs::exists(path / "config.json", code) ? Kind::text_encoder : Kind::weights;
}

std::string read_head(const fs::path& path) {
  std::error_code code;
  if (!fs::exists(path, code)) fail_input(path, "does not exist");
  if (!fs::is_regular_file(path, code)) fail_input(path, "is neither a file nor a folder");
  std::ifstream in(path, std::ios::binary);
  std::array<char, kHeadBytes> head{};
  in.read(head.data(), head.size());
  if (in.bad() || !in.is_open()) fail_input(path, "cannot be read");
  return {head.data(), static_cast<size_t>(in.gcount())};
}

// By the first bytes. The readers check everything else.
Kind kind_of_file(const fs::path& path) {
  using std::string_view_literals::operator""sv;
  const std::string text = read_head(path);
  const std::string_view head = text;
  if (head.empty()) fail_input(path, "is empty");
  if (head.starts_with("\x89HDF\r\n\x1a\n"sv)) return Kind::hdf5;
  if (head.substr(std::min<size_t>(4, head.size())).starts_with("ftyp")) return Kind::mp4;
  // Safetensors: eight bytes of length, then JSON. A Git-LFS pointer stands for such a file.
  if (head.size() > 8 && head[8] == '{' && head[7] == '\0') return Kind::weights;
  if (head.starts_with("version https://git-lfs")) return Kind::weights;
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && head[first] == '{') return Kind::json;
  fail_input(path,
             fmt::format("is nothing that this program makes or reads, or it is damaged (it begins "
                         "with \"{}\"); known: safetensors, HDF5, mp4, the metrics of a run, a "
                         "text encoder's folder",
                         excerpt(head, 16)));
}

Report datasets_of(const io::LatentsFile& file) {
  Report list = Report::array();
  for (const auto& [name, tensor] : file.tensors) {
    list.push_back({{"name", name},
                    {"dtype", tensor.scalar_type() == at::kByte ? "U8" : "F32"},
                    {"shape", tensor.sizes().vec()},
                    {"bytes", tensor.nbytes()}});
  }
  return list;
}

// Reads all of the file, which holds every checksum against its data.
Report inspect_hdf5(const fs::path& path) {
  const io::LatentsFile file = io::read_latents(path);
  const bool resumable = !file.resume_texts.empty() || !file.resume_integers.empty();
  Report report = {{"kind", resumable ? "run_checkpoint" : "latents"},
                   {"flotilla_version", file.flotilla_version},
                   {"created", file.created},
                   {"checkpoint_digest", file.checkpoint_digest},
                   {"seed", file.seed},
                   {"world", file.world},
                   {"restart_count", file.restart_count ? Report(*file.restart_count) : Report()}};
  if (file.has(io::latents::kDecodedAudio)) report["sample_rate"] = file.sample_rate;
  if (resumable) {
    const auto state = with_context(fmt::format("\"{}\"", path.string()),
                                    [&] { return pipeline::take_state(file); });
    report["resume"] = {{"stage", pipeline::next_phase(state)},
                        {"step", state.loop ? state.loop->step : 0},
                        {"place", pipeline::place_of(state)}};
  }
  report["datasets"] = datasets_of(file);
  report["original_prompt"] = file.original_prompt ? Report(*file.original_prompt) : Report();
  report["job"] = file.job_yaml;
  return report;
}

Report describe(const io::TrackInfo& track, bool is_video) {
  Report report = {{"codec", track.codec}, {"duration_s", track.shown_s}};
  if (is_video) {
    report["width"] = track.width;
    report["height"] = track.height;
    report["frames"] = track.num_samples;
    report["frame_rate"] = track.duration > 0 ? static_cast<double>(track.num_samples) *
                                                    static_cast<double>(track.timescale) /
                                                    static_cast<double>(track.duration)
                                              : 0.0;
  } else {
    report["channels"] = track.channels;
    report["sample_rate"] = track.sample_rate;
  }
  return report;
}

Report inspect_mp4(const fs::path& path) {
  const io::Mp4Info info = io::read_mp4_info(path);
  return {{"kind", "clip"},
          {"file_bytes", fs::file_size(path)},
          {"plays_while_it_loads", info.index_in_front},
          {"video", info.video ? describe(*info.video, true) : Report()},
          {"audio", info.audio ? describe(*info.audio, false) : Report()},
          {"job", info.comment.empty() ? Report() : Report(info.comment)}};
}

Report inspect_metrics(const fs::path& path) {
  if (static_cast<int64_t>(fs::file_size(path)) > kMaxMetricsBytes)
    fail_input(path, "is JSON, but larger than the metrics of any run");
  std::ifstream in(path, std::ios::binary);
  const auto json = Report::parse(in, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) fail_input(path, "begins like JSON, but is damaged");
  for (const char* block : {"versions", "plan", "phases", "job"}) {
    if (json.contains(block) && json.at(block).is_object()) continue;
    fail_input(path, fmt::format("is JSON, but not the metrics of a run: no \"{}\"", block));
  }
  const auto job = json.at("job");
  return {{"kind", "metrics"},
          {"versions", json.at("versions")},
          {"plan", json.at("plan")},
          {"phases", json.at("phases")},
          {"total_s", json.value("total_s", Report())},
          {"seed", job.value("seed", Report())},
          {"job", job.value("yaml", Report())}};
}

Report inspect_file(const fs::path& path, bool with_tensors) {
  std::error_code code;
  const Kind kind = fs::is_directory(path, code) ? kind_of_folder(path) : kind_of_file(path);
  if (kind == Kind::hdf5) return inspect_hdf5(path);
  if (kind == Kind::mp4) return inspect_mp4(path);
  if (kind == Kind::json) return inspect_metrics(path);
  Report report = kind == Kind::text_encoder ? inspect_text_encoder(path) : inspect_weights(path);
  if (with_tensors) report["tensor_list"] = list_tensors(*loader::Checkpoint::open(path));
  return report;
}

}  // namespace

int inspect(const Arguments& arguments) {
  po::options_description options("options");
  options.add_options()("json", "as JSON, with whole texts and plain bytes")(
      "tensors", "every tensor of a file with weights: name, type, shape, bytes");
  const auto values = parse(kUsage, options, arguments);
  if (!values) return 0;
  const std::string path = positional(kUsage, *values);
  Report report = {{"path", path}};
  report.update(inspect_file(path, values->count("tensors") != 0));
  print_report(report, values->count("json") != 0);
  return 0;
}

}  // namespace flotilla::app
