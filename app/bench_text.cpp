// flotilla bench text: a prompt of so many tokens through Gemma, the text features and both
// connectors, with random weights of the true shapes.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/bench_support.h"
#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "gpu/device.h"
#include "loader/checkpoint.h"
#include "text/context_builder.h"
#include "text/gemma.h"
#include "text/tokenizer.h"
#include "version.h"

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {"bench text",
                          "flotilla bench text --model CHECKPOINT --text-encoder FOLDER [options]",
                          "Times the text path on prompts of --tokens tokens. The headers of both "
                          "are read, their weights\n"
                          "are drawn at random. floor: the matrix products at the rate that this "
                          "machine has in the same\n"
                          "run.",
                          "\"text\""};

struct Settings {
  std::string checkpoint, folder;
  std::vector<int64_t> tokens;
  at::ScalarType dtype = at::kBFloat16;
  int warmup = 3, iters = 9;
  std::string json;
};

struct Record {
  int64_t tokens = 0;
  TimeSummary gemma, features, connectors, total;
  double floor_ms = 0;
  bool finite = false;
};

Settings read_settings(const po::variables_map& values) {
  positional(kUsage, values);
  if (values.count("model") == 0 || values.count("text-encoder") == 0)
    fail(ErrorKind::usage, "bench text needs --model CHECKPOINT and --text-encoder FOLDER");
  Settings settings;
  settings.checkpoint = values["model"].as<std::string>();
  settings.folder = values["text-encoder"].as<std::string>();
  settings.tokens = values["tokens"].as<std::vector<int64_t>>();
  settings.dtype = bench_dtype(values["precision"].as<std::string>());
  settings.warmup = values["warmup"].as<int>();
  settings.iters = values["iters"].as<int>();
  if (values.count("json") != 0) settings.json = values["json"].as<std::string>();
  const auto fits = [](int64_t count) { return 1 <= count && count <= text::kPromptTokens; };
  if (!std::all_of(settings.tokens.begin(), settings.tokens.end(), fits))
    fail(ErrorKind::usage, fmt::format("--tokens is from 1 to {}", text::kPromptTokens));
  if (settings.warmup < 0 || settings.iters < 1)
    fail(ErrorKind::usage, "--warmup must not be negative, --iters must be 1 or more");
  return settings;
}

// Multiplications and additions of the matrix products of all layers.
double gemma_flop(const text::GemmaConfig& config, int64_t tokens) {
  const int64_t heads = 2 * config.num_heads + 2 * config.num_kv_heads;  // q and out, k and v
  const int64_t weights =
      config.hidden_size * (heads * config.head_dim + 3 * config.intermediate_size);
  return 2.0 * static_cast<double>(config.num_layers() * weights) * static_cast<double>(tokens);
}

class TextBench {
 public:
  TextBench(const Settings& settings, at::Device device)
      : settings_(settings),
        device_(device),
        gemma_(settings.folder, settings.dtype, device),
        contexts_(loader::Checkpoint::open(settings.checkpoint), gemma_.config(), settings.folder,
                  settings.dtype, device) {
    gemma_.load(draw_weights);
    contexts_.load(draw_weights);
  }

  Record run(int64_t tokens) {
    Record record;
    record.tokens = tokens;
    const at::Tensor ids = at::randint(3, gemma_.config().vocab_size, {1, tokens}, at::kLong);
    const at::Tensor mask = at::ones_like(ids);
    text::GemmaStates states;
    text::TextFeatures features;
    text::TextContext context;
    const auto connect = [&] {
      const auto rows = text::kPromptTokens;
      context.video =
          contexts_.connect(text::ConnectorKind::video, features.video, features.mask, rows);
      context.audio =
          contexts_.connect(text::ConnectorKind::audio, features.audio, features.mask, rows);
    };
    record.gemma = time([&] { states = gemma_.forward(ids, mask); });
    record.features = time([&] { features = contexts_.features(states); });
    record.connectors = time(connect);
    record.total = time([&] { context = contexts_.build(gemma_.forward(ids, mask)); });
    record.finite = at::isfinite(context.video).all().item<bool>();
    record.floor_ms = 1e3 * flop_of(tokens) / matrix_rate(tokens);
    return record;
  }

 private:
  TimeSummary time(const std::function<void()>& work) const {
    return time_calls(device_, settings_.warmup, settings_.iters, work);
  }
  double flop_of(int64_t tokens) const {
    const auto& features = contexts_.feature_config();
    double flop = gemma_flop(gemma_.config(), tokens);
    flop += 2.0 * static_cast<double>(features.input_width() * tokens) *
            static_cast<double>(features.video_width + features.audio_width);
    for (const auto kind : {text::ConnectorKind::video, text::ConnectorKind::audio}) {
      const auto& config = contexts_.connector_config(kind);
      flop += 2.0 * 12.0 * static_cast<double>(config.num_layers * config.width()) *
              static_cast<double>(config.width() * text::kPromptTokens);
    }
    return flop;
  }
  double matrix_rate(int64_t tokens) const {
    const auto options = at::TensorOptions(device_).dtype(settings_.dtype);
    const at::Tensor x = at::randn({tokens, gemma_.config().hidden_size}, options);
    const at::Tensor weight =
        at::randn({gemma_.config().intermediate_size, gemma_.config().hidden_size}, options);
    return rate_of(device_, 2.0 * static_cast<double>(x.numel() * weight.size(0)),
                   [&] { at::linear(x, weight); });
  }

  const Settings& settings_;
  at::Device device_;
  text::Gemma gemma_;
  text::ContextBuilder contexts_;
};

void print_table(const Settings& settings, at::Device device, const std::vector<Record>& records) {
  fmt::print("# flotilla bench text {} ({})  torch {}  {}  {}  warmup {}  iters {}  p50, ms\n",
             kVersion, kCommit, kTorchVersion, gpu::device_name(device),
             c10::toString(settings.dtype), settings.warmup, settings.iters);
  fmt::print("# {:>6} {:>9} {:>9} {:>11} {:>9} {:>9} {:>8} {:>9}\n", "tokens", "gemma", "features",
             "connectors", "total", "floor", "x floor", "peak GiB");
  for (const auto& record : records) {
    fmt::print("  {:>6} {:>9.2f} {:>9.2f} {:>11.2f} {:>9.2f} {:>9.2f} {:>8.2f} {:>9.2f}{}\n",
               record.tokens, record.gemma.p50_ms, record.features.p50_ms, record.connectors.p50_ms,
               record.total.p50_ms, record.floor_ms, record.total.p50_ms / record.floor_ms,
               static_cast<double>(gpu::peak_device_bytes(device)) / (1 << 30),
               record.finite ? "" : "  NOT FINITE");
  }
}

void write_json(const Settings& settings, const std::vector<Record>& records) {
  nlohmann::ordered_json json = {{"version", kVersion},
                                 {"commit", kCommit},
                                 {"dtype", c10::toString(settings.dtype)},
                                 {"records", nlohmann::ordered_json::array()}};
  for (const auto& record : records) {
    json["records"].push_back({{"tokens", record.tokens},
                               {"gemma_ms", record.gemma.p50_ms},
                               {"features_ms", record.features.p50_ms},
                               {"connectors_ms", record.connectors.p50_ms},
                               {"total_ms", record.total.p50_ms},
                               {"total_min_ms", record.total.min_ms},
                               {"total_max_ms", record.total.max_ms},
                               {"floor_ms", record.floor_ms}});
  }
  write_bench_json(settings.json, json);
}

}  // namespace

int bench_text(const Arguments& arguments) {
  po::options_description options("options");
  auto add = options.add_options();
  add("model", po::value<std::string>()->value_name("CHECKPOINT"), "whose header is used");
  add("text-encoder", po::value<std::string>()->value_name("FOLDER"), "of Gemma 3");
  add("tokens",
      po::value<std::vector<int64_t>>()->composing()->default_value({128, 1024}, "128, 1024"),
      "of the prompt; may be given again");
  add("precision", po::value<std::string>()->default_value("bf16"), "bf16 or fp32");
  add("warmup", po::value<int>()->default_value(3), "calls that are not counted");
  add("iters", po::value<int>()->default_value(9), "calls that are");
  add("json", po::value<std::string>()->value_name("FILE"), "write the records there");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  require_one_rank();
  const Settings settings = read_settings(*values);
  if (!settings.json.empty()) check_output_place(settings.json, /*overwrite=*/true);
  const at::Device device = gpu::cuda_available() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  TextBench bench(settings, device);
  std::vector<Record> records;
  for (const int64_t tokens : settings.tokens) records.push_back(bench.run(tokens));
  print_table(settings, device, records);
  if (!settings.json.empty()) write_json(settings, records);
  const bool finite = std::all_of(records.begin(), records.end(),
                                  [](const Record& record) { return record.finite; });
  return finite ? 0 : exit_code(ErrorKind::non_finite);
}

}  // namespace flotilla::app
