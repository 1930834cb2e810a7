// flotilla bench audio: latents of so many seconds through the audio VAE and the vocoder, with
// random weights of the true shapes.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/bench_support.h"
#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "audio/audio_vae.h"
#include "audio/vocoder.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "diffusion/positions.h"
#include "gpu/device.h"
#include "loader/checkpoint.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "bench audio", "flotilla bench audio --model CHECKPOINT [options]",
    "Times the way from audio latents to sound. The header of CHECKPOINT is read, its weights are\n"
    "drawn at random; the vocoder computes in fp32, as in a job.",
    "\"audio\""};

struct Record {
  double seconds = 0;  // of the clip
  int64_t latents = 0;
  TimeSummary vae, vocoder, total;
  bool finite = false;
};

Record measure(const audio::AudioDecoder& decoder, const audio::Vocoder& vocoder,
               const at::TensorOptions& options, double seconds, int warmup, int iters) {
  constexpr double kFrameRate = 24.0;
  Record record;
  record.seconds = seconds;
  const auto frames = static_cast<int64_t>(seconds * kFrameRate);
  record.latents = diffusion::audio_latent_size({frames, 32, 32, kFrameRate}).frames;
  const auto& format = decoder.format();
  const at::Tensor latent =
      at::randn({1, format.latent_channels, record.latents, format.latent_bins()}, options);
  const auto time = [&](const std::function<void()>& work) {
    return time_calls(options.device(), warmup, iters, work);
  };
  at::Tensor mel;
  audio::Waveform sound;
  record.vae = time([&] { mel = decoder.decode(latent); });
  record.vocoder = time([&] { sound = vocoder.synthesize(mel); });
  record.total = time([&] { sound = audio::decode_audio(decoder, vocoder, latent); });
  record.finite = at::isfinite(sound.samples).all().item<bool>();
  return record;
}

void write_json(const std::string& file, const std::vector<Record>& records) {
  nlohmann::ordered_json json = {
      {"version", kVersion}, {"commit", kCommit}, {"records", nlohmann::ordered_json::array()}};
  for (const auto& record : records) {
    json["records"].push_back({{"seconds", record.seconds},
                               {"latents", record.latents},
                               {"vae_ms", record.vae.p50_ms},
                               {"vocoder_ms", record.vocoder.p50_ms},
                               {"total_ms", record.total.p50_ms},
                               {"total_min_ms", record.total.min_ms},
                               {"total_max_ms", record.total.max_ms}});
  }
  write_bench_json(file, json);
}

}  // namespace

int bench_audio(const Arguments& arguments) {
  po::options_description options("options");
  auto add = options.add_options();
  add("model", po::value<std::string>()->value_name("CHECKPOINT"), "whose header is used");
  add("seconds", po::value<std::vector<double>>()->composing()->default_value({5.04}, "5.04"),
      "of the clip; may be given again");
  add("precision", po::value<std::string>()->default_value("bf16"),
      "of the audio VAE: bf16 or fp32");
  add("warmup", po::value<int>()->default_value(3), "calls that are not counted");
  add("iters", po::value<int>()->default_value(9), "calls that are");
  add("json", po::value<std::string>()->value_name("FILE"), "write the records there");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  require_one_rank();
  positional(kUsage, *values);
  if (values->count("model") == 0) fail(ErrorKind::usage, "bench audio needs --model CHECKPOINT");
  const std::string precision = (*values)["precision"].as<std::string>();
  const int warmup = (*values)["warmup"].as<int>(), iters = (*values)["iters"].as<int>();
  const auto clips = (*values)["seconds"].as<std::vector<double>>();
  const bool possible = std::all_of(clips.begin(), clips.end(), [](double seconds) {
    return 0.1 <= seconds && seconds <= 600.0;
  });
  if (!possible || warmup < 0 || iters < 1)
    fail(ErrorKind::usage, "--seconds is from 0.1 to 600, --iters is 1 or more");
  const std::string json = values->count("json") != 0 ? (*values)["json"].as<std::string>() : "";
  if (!json.empty()) check_output_place(json, /*overwrite=*/true);

  const at::Device device = gpu::cuda_available() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  const auto checkpoint = loader::Checkpoint::open((*values)["model"].as<std::string>());
  const at::ScalarType dtype = bench_dtype(precision);
  const auto decoder =
      audio::AudioDecoder::from_checkpoint(checkpoint, dtype, device, draw_weights);
  const auto vocoder = audio::Vocoder::from_checkpoint(checkpoint, device, draw_weights);
  std::vector<Record> records;
  for (const double seconds : clips) {
    records.push_back(
        measure(decoder, vocoder, at::TensorOptions(device).dtype(dtype), seconds, warmup, iters));
  }
  fmt::print("# flotilla bench audio {} ({})  torch {}  {}  {}  warmup {}  iters {}  p50, ms\n",
             kVersion, kCommit, kTorchVersion, gpu::device_name(device), precision, warmup, iters);
  fmt::print("# {:>8} {:>8} {:>9} {:>9} {:>9} {:>12}\n", "seconds", "latents", "vae", "vocoder",
             "total", "x real time");
  for (const auto& record : records) {
    fmt::print("  {:>8.2f} {:>8} {:>9.2f} {:>9.2f} {:>9.2f} {:>12.1f}{}\n", record.seconds,
               record.latents, record.vae.p50_ms, record.vocoder.p50_ms, record.total.p50_ms,
               1e3 * record.seconds / record.total.p50_ms, record.finite ? "" : "  NOT FINITE");
  }
  if (!json.empty()) write_json(json, records);
  const bool finite = std::all_of(records.begin(), records.end(),
                                  [](const Record& record) { return record.finite; });
  return finite ? 0 : exit_code(ErrorKind::non_finite);
}

}  // namespace flotilla::app
