// flotilla bench vae: the video decoder of a model of real size, with random weights made where
// they lie, beside its convolutions alone.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/bench_support.h"
#include "app/command.h"
#include "app/options.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "gpu/device.h"
#include "loader/checkpoint.h"
#include "vae/decoder.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "bench vae", "flotilla bench vae --model CHECKPOINT [options]",
    "Times the decode of a clip by the video VAE whose header CHECKPOINT has; its weights are not\n"
    "read but drawn at random. A decode starts from an idle device and ends with uint8 frames on\n"
    "it. floor: the convolutions of the whole clip alone, one after the other, on their own "
    "shapes\n"
    "in the same run.",
    "\"vae\"", /*many_ranks=*/false};

struct Settings {
  std::string checkpoint;
  diffusion::VideoPixelSize clip{.frame_rate = 24.0};
  at::ScalarType dtype = at::kBFloat16;
  std::string tiling;
  bool search = false;
  int64_t seed = 0;
  int warmup = 2, iters = 5;
  std::string json;
};

// A convolution of the decoder and the map that it reads, without the borders of space.
struct ConvCall {
  vae::Conv conv;
  int64_t frames = 0, height = 0, width = 0;  // of what it computes

  double flop() const {
    return 2.0 * static_cast<double>(conv.weight.numel()) *
           static_cast<double>(frames * height * width);
  }
};

// One record a shape of convolution.
struct ConvRecord {
  int64_t in = 0, out = 0;
  ConvCall call;
  int64_t count = 0;
  double ms = 0;  // of one call
};

struct Record {
  std::string plan;
  int64_t tiles = 0;
  int64_t latent_cells = 0;
  double first_ms = 0;  // of the first decode, in which the library chooses its kernels
  TimeSummary decode;
  double conv_flop = 0;  // of the clip as a whole
  std::vector<ConvRecord> convs;
  int64_t weight_bytes = 0;
  int64_t peak_device_bytes = 0;

  double floor_ms() const {
    double sum = 0;
    for (const ConvRecord& conv : convs) sum += conv.ms * static_cast<double>(conv.count);
    return sum;
  }
};

// The decoder's convolutions in order, for a latent of this size decoded as a whole.
std::vector<ConvCall> conv_calls(const vae::VideoDecoder& decoder,
                                 const diffusion::VideoLatentSize& latent) {
  const vae::DecoderWeights& weights = decoder.weights();
  ConvCall at{weights.conv_in, latent.frames, latent.height, latent.width};
  std::vector<ConvCall> calls{at};
  for (const vae::Block& block : weights.blocks) {
    for (const vae::ResidualLayer& layer : block.layers) {
      for (const vae::Conv& conv : {layer.conv1, layer.conv2}) {
        at.conv = conv;
        calls.push_back(at);
      }
    }
    if (block.config.kind != vae::BlockKind::unfold) continue;
    at.conv = block.conv;
    calls.push_back(at);
    const auto& stride = block.config.stride;
    at.frames = at.frames * stride[0] - (stride[0] - 1);
    at.height *= stride[1];
    at.width *= stride[2];
  }
  at.conv = weights.conv_out;
  calls.push_back(at);
  return calls;
}

// One record a shape, in the order in which they first occur.
std::vector<ConvRecord> shapes_of(const std::vector<ConvCall>& calls) {
  std::vector<ConvRecord> records;
  for (const ConvCall& call : calls) {
    const int64_t in = call.conv.weight.size(1);
    const int64_t out = call.conv.weight.size(0);
    const auto same = [&](const ConvRecord& record) {
      return record.in == in && record.out == out && record.call.frames == call.frames &&
             record.call.height == call.height && record.call.width == call.width;
    };
    const auto found = std::find_if(records.begin(), records.end(), same);
    if (found != records.end()) {
      ++found->count;
    } else {
      records.push_back({in, out, call, 1, 0});
    }
  }
  return records;
}

// Milliseconds of one convolution without its bias, channels innermost, borders in place.
double conv_ms(const ConvCall& call, const vae::Borders& borders, const Settings& settings,
               at::Device device) {
  const int64_t margin = 2 * borders.margin();
  const at::Tensor buffer =
      at::empty({1, call.conv.weight.size(1), borders.front() + call.frames + borders.back(),
                 call.height + margin, call.width + margin},
                call.conv.weight.options(), at::MemoryFormat::ChannelsLast3d)
          .normal_();
  const vae::Conv without_bias{call.conv.weight, {}};
  return time_calls(device, settings.warmup, settings.iters,
                    [&] { vae::convolve(buffer, without_bias, borders); })
      .p50_ms;
}

diffusion::VideoTiling tiling_of(const Settings& settings, const vae::VideoDecoder& decoder,
                                 const diffusion::VideoLatentSize& latent, at::Device device) {
  if (settings.tiling == "off") return {};
  if (settings.tiling == "default") {
    return diffusion::default_tiling(settings.clip.height, settings.clip.width,
                                     decoder.scale().height);
  }
  return vae::automatic_tiling(decoder.config(), latent,
                               static_cast<int64_t>(c10::elementSize(settings.dtype)),
                               gpu::total_memory_bytes(device) / vae::kDecodeMemoryShare);
}

Record measure(const Settings& settings, at::Device device) {
  gpu::disable_tf32();
  at::globalContext().setBenchmarkCuDNN(settings.search);
  at::manual_seed(static_cast<uint64_t>(settings.seed));
  const auto decoder = vae::VideoDecoder::from_checkpoint(
      loader::Checkpoint::open(settings.checkpoint), settings.dtype, device, draw_weights);
  const auto size = diffusion::video_latent_size(settings.clip, decoder.config().latent_channels,
                                                 decoder.scale());
  const vae::TilePlan plan =
      vae::plan_tiles(tiling_of(settings, decoder, size, device), size, decoder.scale());
  const at::Tensor latent =
      at::randn({1, decoder.config().latent_channels, size.frames, size.height, size.width},
                at::TensorOptions(device).dtype(settings.dtype));
  const auto decode = [&] {
    decoder.decode_frames(latent, plan, [](const at::Tensor& frames) { vae::to_uint8(frames); });
  };
  Record record;
  record.plan = plan.describe();
  record.tiles = plan.num_tiles();
  record.latent_cells = size.num_tokens();
  record.weight_bytes = decoder.weight_bytes();
  record.first_ms = 1e3 * seconds_of(device, decode);
  record.decode = time_calls(device, settings.warmup, settings.iters, decode);
  record.peak_device_bytes = gpu::peak_device_bytes(device);
  const auto calls = conv_calls(decoder, size);
  for (const ConvCall& call : calls) record.conv_flop += call.flop();
  record.convs = shapes_of(calls);
  for (ConvRecord& conv : record.convs)
    conv.ms = conv_ms(conv.call, decoder.borders(), settings, device);
  return record;
}

void print_table(const Settings& settings, at::Device device, const Record& record) {
  constexpr double kGiB = 1 << 30;
  const auto& clip = settings.clip;
  const double tflop = record.conv_flop * 1e-12;
  fmt::print("# flotilla bench vae {} ({})  torch {}  {}  {}  search {}  warmup {}  iters {}\n",
             kVersion, kCommit, kTorchVersion, gpu::device_name(device),
             c10::toString(settings.dtype), settings.search ? "on" : "off", settings.warmup,
             settings.iters);
  fmt::print("# {}x{}x{}, {} latent cells, {}; weights {:.2f} GiB, random\n", clip.width,
             clip.height, clip.frames, record.latent_cells, record.plan,
             static_cast<double>(record.weight_bytes) / kGiB);
  fmt::print("# {:<22} {:>5} {:>9} {:>9} {:>9}\n", "convolution", "count", "each (ms)", "all (ms)",
             "TFLOP/s");
  for (const ConvRecord& conv : record.convs) {
    const auto& [in, out, call, count, ms] = conv;
    fmt::print("  {:<22} {:>5} {:>9.3f} {:>9.2f} {:>9.1f}\n",
               fmt::format("{}>{} {}x{}x{}", in, out, call.frames, call.height, call.width), count,
               ms, ms * static_cast<double>(count), call.flop() / ms * 1e-9);
  }
  fmt::print("# {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9} {:>8} {:>9}\n", "first", "min", "p50",
             "max", "TFLOP", "TFLOP/s", "floor", "x floor", "peak");
  fmt::print("# {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9} {:>8} {:>9}\n", "(ms)", "(ms)", "(ms)",
             "(ms)", "", "", "(ms)", "", "(GiB)");
  fmt::print("  {:>9.1f} {:>9.2f} {:>9.2f} {:>9.2f} {:>8.1f} {:>9.1f} {:>9.2f} {:>8.2f} {:>9.2f}\n",
             record.first_ms, record.decode.min_ms, record.decode.p50_ms, record.decode.max_ms,
             tflop, tflop / record.decode.p50_ms * 1e3, record.floor_ms(),
             record.decode.p50_ms / record.floor_ms(),
             static_cast<double>(record.peak_device_bytes) / kGiB);
}

void write_json(const Settings& settings, at::Device device, const Record& record) {
  nlohmann::ordered_json json = {{"version", kVersion},
                                 {"commit", kCommit},
                                 {"device", gpu::device_name(device)},
                                 {"dtype", c10::toString(settings.dtype)},
                                 {"width", settings.clip.width},
                                 {"height", settings.clip.height},
                                 {"frames", settings.clip.frames},
                                 {"tiling", record.plan},
                                 {"tiles", record.tiles},
                                 {"search", settings.search},
                                 {"first_ms", record.first_ms},
                                 {"min_ms", record.decode.min_ms},
                                 {"p50_ms", record.decode.p50_ms},
                                 {"max_ms", record.decode.max_ms},
                                 {"conv_flop", record.conv_flop},
                                 {"floor_ms", record.floor_ms()},
                                 {"weight_bytes", record.weight_bytes},
                                 {"peak_device_bytes", record.peak_device_bytes},
                                 {"convolutions", nlohmann::ordered_json::array()}};
  for (const ConvRecord& conv : record.convs) {
    json["convolutions"].push_back({{"in", conv.in},
                                    {"out", conv.out},
                                    {"frames", conv.call.frames},
                                    {"height", conv.call.height},
                                    {"width", conv.call.width},
                                    {"count", conv.count},
                                    {"flop", conv.call.flop()},
                                    {"ms", conv.ms}});
  }
  write_bench_json(settings.json, json);
}

Settings read_settings(const po::variables_map& values) {
  positional(kUsage, values);  // the word "vae" itself, and nothing behind it
  if (values.count("model") == 0) fail(ErrorKind::usage, "bench vae needs --model CHECKPOINT");
  Settings settings;
  settings.checkpoint = values["model"].as<std::string>();
  settings.clip.width = values["width"].as<int64_t>();
  settings.clip.height = values["height"].as<int64_t>();
  settings.clip.frames = values["frames"].as<int64_t>();
  const auto dtype = values["dtype"].as<std::string>();
  if (dtype != "bf16" && dtype != "fp32")
    fail(ErrorKind::usage, fmt::format("--dtype is bf16 or fp32, not \"{}\"", dtype));
  settings.dtype = dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  settings.tiling = values["tiling"].as<std::string>();
  if (settings.tiling != "auto" && settings.tiling != "off" && settings.tiling != "default") {
    fail(ErrorKind::usage,
         fmt::format("--tiling is auto, off or default, not \"{}\"", settings.tiling));
  }
  settings.search = values.count("search") != 0;
  settings.seed = values["seed"].as<int64_t>();
  settings.warmup = values["warmup"].as<int>();
  settings.iters = values["iters"].as<int>();
  if (values.count("json") != 0) settings.json = values["json"].as<std::string>();
  if (settings.warmup < 0 || settings.iters < 1)
    fail(ErrorKind::usage, "--iters must be 1 or more, --warmup 0 or more");
  return settings;
}

}  // namespace

int bench_vae(const Arguments& arguments) {
  po::options_description options("options");
  const auto count = [](int value) { return po::value<int>()->default_value(value); };
  const auto size = [](int64_t value) { return po::value<int64_t>()->default_value(value); };
  const auto text = [](const char* value) {
    return po::value<std::string>()->default_value(value);
  };
  auto add = options.add_options();
  add("model", po::value<std::string>()->value_name("CHECKPOINT"), "whose header is used");
  add("width", size(1536), "pixels");
  add("height", size(1024), "pixels");
  add("frames", size(121), "frames, 8k + 1");
  add("dtype", text("bf16"), "bf16 or fp32");
  add("tiling", text("auto"), "auto, off, or default: the reference's tiles");
  add("search", "cuDNN times its kernels for each shape before the first use");
  add("seed", size(0), "of weights and latent");
  add("warmup", count(2), "decodes that are not counted, behind the first");
  add("iters", count(5), "decodes that are");
  add("json", po::value<std::string>()->value_name("FILE"), "write the record there");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  const Settings settings = read_settings(*values);
  if (!settings.json.empty()) check_output_place(settings.json, /*overwrite=*/true);
  const at::Device device = gpu::cuda_available() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  const Record record = measure(settings, device);
  print_table(settings, device, record);
  if (!settings.json.empty()) write_json(settings, device, record);
  return 0;
}

}  // namespace flotilla::app
