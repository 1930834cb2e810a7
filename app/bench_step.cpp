// flotilla bench step: one denoise forward of a model of real size, with random weights made where
// they lie, beside what the machine's own matrix products and attention would take.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/bench_support.h"
#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "app/step_cost.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "comm/rank_context.h"
#include "diffusion/positions.h"
#include "gpu/device.h"
#include "loader/checkpoint.h"
#include "ops/fp8_linear.h"
#include "ops/linear.h"
#include "parallel/sequence_parallel.h"
#include "transformer/velocity_model.h"
#include "version.h"

#ifdef FLOTILLA_CUDA
#include "comm/cuda_head_exchange.h"
#endif

namespace flotilla::app {
namespace {

constexpr Usage kUsage = {
    "bench step", "[mpirun -n N] flotilla bench step --model CHECKPOINT [options]",
    "Times one pass of the transformer whose header CHECKPOINT has; its weights are not read but\n"
    "drawn at random. Each pass starts from an idle device. floor: the pass's matrix products and\n"
    "attentions at the rates that this machine has in the same run. With several ranks the video\n"
    "tokens are spread over them (SP).",
    "\"step\"", /*many_ranks=*/true};

struct ClipSize {
  int64_t width = 0, height = 0, frames = 0;
};

struct Settings {
  std::string checkpoint;
  std::vector<ClipSize> sizes;
  int64_t samples = 1;
  int64_t text_tokens = 1024;
  int64_t simulated_ranks = 0;  // 0: none
  std::string precision;
  bool graphs = true;
  int warmup = 3, iters = 5;
  std::string json;
};

struct Record {
  ClipSize size;
  int64_t tokens = 0;
  int64_t own_tokens = 0;
  double min_ms = 0, p50_ms = 0, max_ms = 0;
  PassCost cost;
  double floor_ms = 0;
  int64_t peak_device_bytes = 0;
  double exchange_ms = 0;  // of a pass, in the exchange's kernels
  double wait_ms = 0;      // of these, waiting for peers
  bool finite = false;
};

loader::StoragePolicy policy_of(const std::string& precision) {
  if (precision == "bf16") return at::kBFloat16;
  if (precision == "fp32") return at::kFloat;
  if (precision == "fp8_cast") return loader::StoragePolicy::fp8_cast();
  if (precision == "fp8_scaled_mm") return loader::StoragePolicy::fp8_scaled_mm();
  fail(ErrorKind::usage,
       fmt::format("--precision is bf16, fp32, fp8_cast or fp8_scaled_mm, not \"{}\"", precision));
}

void note_exchange(Record& record, const parallel::SequenceExchange& exchange, int64_t passes) {
  const comm::ExchangeStats stats = exchange.stats();
  record.exchange_ms = 1e3 * stats.seconds / static_cast<double>(passes);
  record.wait_ms = 1e3 * stats.wait_seconds / static_cast<double>(passes);
}

class StepBench {
 public:
  StepBench(const Settings& settings, at::Device device, comm::RankContext* ranks)
      : settings_(settings),
        device_(device),
        ranks_(ranks),
        policy_(policy_of(settings.precision)),
        model_(loader::Checkpoint::open(settings.checkpoint), policy_, device, draw_weights) {}

  Record run(const ClipSize& size);
  const transformer::TransformerConfig& config() const { return model_.config(); }
  int64_t weight_bytes() const { return model_.weight_bytes(); }

 private:
  // What passes read: tokens with random values, at the places that the clip's have.
  struct Inputs {
    transformer::Modality video, audio;
    transformer::TokenPositions positions;
  };
  Inputs make_inputs(const diffusion::VideoGrid& grid, const diffusion::AudioLatentSize& sound);
  int64_t world_size() const {
    if (settings_.simulated_ranks > 0) return settings_.simulated_ranks;
    return ranks_ != nullptr ? ranks_->world_size() : 1;
  }
  double floor_s(const Record& record) const;
  parallel::SequenceSizes exchange_sizes(int64_t tokens, int64_t sound) const;
  // Warm-up, then the timed passes.
  void measure(Record& record, const std::function<at::Tensor()>& pass);
  void run_simulated(Record& record, const Inputs& inputs);

  const Settings& settings_;
  at::Device device_;
  comm::RankContext* ranks_;
  loader::StoragePolicy policy_;
  transformer::Transformer model_;
};

StepBench::Inputs StepBench::make_inputs(const diffusion::VideoGrid& grid,
                                         const diffusion::AudioLatentSize& sound) {
  const auto options = at::TensorOptions(device_).dtype(policy_.dtype);
  const at::Tensor sigma = at::full({settings_.samples}, 0.8, options.dtype(at::kFloat));
  const auto stream = [&](int64_t tokens, const transformer::StreamConfig& config) {
    transformer::Modality modality;
    modality.latent = at::randn({settings_.samples, tokens, config.in_channels}, options);
    modality.sigma = sigma;
    modality.timesteps.values = sigma;
    modality.context =
        at::randn({settings_.samples, settings_.text_tokens, config.context_dim}, options);
    return modality;
  };
  return {
      stream(grid.size.num_tokens(), config().video),
      stream(sound.frames, config().audio),
      {diffusion::video_positions(grid, device_), diffusion::audio_positions(sound, {}, device_)}};
}

parallel::SequenceSizes StepBench::exchange_sizes(int64_t tokens, int64_t sound) const {
  parallel::SequenceSizes sizes;
  sizes.max_tokens = tokens;
  sizes.max_batch = settings_.samples;
  sizes.audio_tokens = sound;
  sizes.text_tokens = settings_.text_tokens;
  sizes.dtype = policy_.dtype;
  sizes.device = device_;
  sizes.timeout_s = 20;
  return sizes;
}

double StepBench::floor_s(const Record& record) const {
  const auto options = at::TensorOptions(device_).dtype(policy_.dtype);
  const int64_t dim = config().video.dim();
  const int64_t rows = record.own_tokens * settings_.samples;
  const at::Tensor x = at::randn({rows, dim}, options);
  const at::Tensor weight = at::randn({4 * dim, dim}, options);
  std::function<void()> product = [&] { at::linear(x, weight); };
  if (policy_.eight_bit == loader::EightBit::scaled) {
    const ops::QuantisedRows of_x = ops::quantise_rows(x);
    const ops::QuantisedRows of_weight = ops::quantise_rows(weight);
    const ops::LinearWeights layer{of_weight.values, {}, of_weight.scales.squeeze(1)};
    product = [=] { ops::fp8_linear(of_x, layer); };
  }
  const double gemm = rate_of(device_, 8.0 * static_cast<double>(rows * dim * dim), product);
  const int64_t heads = config().video.heads / world_size();
  const at::Tensor q =
      at::randn({settings_.samples, heads, record.tokens, config().video.head_dim}, options);
  const double flop = 4.0 * static_cast<double>(q.numel()) * static_cast<double>(record.tokens);
  const double attention =
      rate_of(device_, flop, [&] { at::scaled_dot_product_attention(q, q, q); });
  return record.cost.gemm_flop / gemm + record.cost.attention_flop / attention;
}

void StepBench::measure(Record& record, const std::function<at::Tensor()>& pass) {
  for (int i = 0; i < settings_.warmup; ++i) pass();
  std::vector<double> times;
  at::Tensor result;
  for (int i = 0; i < settings_.iters; ++i) {
    if (ranks_ != nullptr) ranks_->world().barrier("the next pass", 60);
    times.push_back(1e3 * seconds_of(device_, [&] { result = pass(); }));
  }
  const TimeSummary summary = summary_of(std::move(times));
  record.min_ms = summary.min_ms;
  record.p50_ms = summary.p50_ms;
  record.max_ms = summary.max_ms;
  record.finite = at::isfinite(result).all().item<bool>();
  record.peak_device_bytes = gpu::peak_device_bytes(device_);
}

#ifdef FLOTILLA_CUDA
// One rank's share: its tokens in everything but attention, its heads of all tokens in that.
void StepBench::run_simulated(Record& record, const Inputs& inputs) {
  const auto sizes = exchange_sizes(record.tokens, inputs.audio.latent.size(1));
  const auto loopback = [&](const comm::HeadExchangeOptions& options) {
    return comm::make_loopback_head_exchange(static_cast<int>(world_size()), device_, options);
  };
  parallel::SequenceExchange exchange;
  exchange.video = loopback(parallel::video_exchange_options(model_.config(), sizes));
  exchange.text = loopback(parallel::text_exchange_options(model_.config(), sizes));
  exchange.set_token_count(record.tokens, settings_.samples);
  transformer::Modality own = inputs.video;
  own.latent = own.latent.narrow(1, 0, record.own_tokens).contiguous();
  const auto rope = transformer::make_rope_tables(
      model_.config(), inputs.positions.video.narrow(2, 0, record.own_tokens),
      inputs.positions.audio, policy_.dtype);
  const parallel::SequenceParallelAttention attention(exchange);
  transformer::BlockGraphs graphs;
  int64_t passes = 0;
  measure(record, [&] {
    ++passes;
    return model_
        .forward(&own, &inputs.audio, rope, {}, attention, settings_.graphs ? &graphs : nullptr)
        .video;
  });
  note_exchange(record, exchange, passes);
}
#else
void StepBench::run_simulated(Record&, const Inputs&) {
  fail(ErrorKind::machine, "--simulate-world needs a build with CUDA");
}
#endif

Record StepBench::run(const ClipSize& size) {
  constexpr double kFrameRate = 24.0;
  const diffusion::VideoPixelSize pixels{size.frames, size.height, size.width, kFrameRate};
  const diffusion::VideoGrid grid{diffusion::video_latent_size(pixels), kFrameRate};
  const auto sound = diffusion::audio_latent_size(pixels);
  Record record;
  record.size = size;
  record.tokens = grid.size.num_tokens();
  record.own_tokens = (record.tokens + world_size() - 1) / world_size();
  record.cost = cost_of_pass(config(), {settings_.samples, record.tokens, record.own_tokens,
                                        sound.frames, settings_.text_tokens, world_size()});
  const Inputs inputs = make_inputs(grid, sound);
  transformer::BlockGraphs graphs;
  transformer::BlockGraphs* use_graphs = settings_.graphs ? &graphs : nullptr;
  if (settings_.simulated_ranks > 0) {
    run_simulated(record, inputs);
  } else if (world_size() > 1) {
    auto exchange = parallel::make_sequence_exchange(ranks_->transformer(), config(),
                                                     exchange_sizes(record.tokens, sound.frames));
    const parallel::SequenceParallelVelocityModel model(
        model_, inputs.positions, policy_.dtype, ranks_->transformer(), exchange, use_graphs);
    int64_t passes = 0;
    measure(record, [&] {
      ++passes;
      return model.forward(&inputs.video, &inputs.audio, {}).video;
    });
    note_exchange(record, exchange, passes);
    exchange.close();
  } else {
    const transformer::LocalVelocityModel model(model_, inputs.positions, policy_.dtype,
                                                use_graphs);
    measure(record, [&] { return model.forward(&inputs.video, &inputs.audio, {}).video; });
  }
  record.floor_ms = 1e3 * floor_s(record);
  return record;
}

void print_table(const Settings& settings, const StepBench& bench, at::Device device,
                 int world_size, const std::vector<Record>& records) {
  fmt::print(
      "# flotilla bench step {} ({})  torch {}  {}  ranks {}{}  {}  samples {}  graphs {}  warmup "
      "{}  iters {}\n",
      kVersion, kCommit, kTorchVersion, gpu::device_name(device), world_size,
      settings.simulated_ranks > 0
          ? fmt::format(" (one rank's share of {}, loop-back exchange)", settings.simulated_ranks)
          : "",
      settings.precision, settings.samples, settings.graphs ? "auto" : "off", settings.warmup,
      settings.iters);
  fmt::print("# weights {:.2f} GiB, random\n",
             static_cast<double>(bench.weight_bytes()) / (1 << 30));
  constexpr const char* kColumns =
      "# {:<14} {:>7} {:>7} {:>9} {:>9} {:>9} {:>8} {:>9} {:>9} {:>8} {:>9} {:>8} {:>9}\n";
  fmt::print(fmt::runtime(kColumns), "clip", "tokens", "own", "min", "p50", "max", "TFLOP",
             "TFLOP/s", "floor", "x floor", "exchange", "wait", "peak");
  fmt::print(fmt::runtime(kColumns), "", "", "", "(ms)", "(ms)", "(ms)", "", "", "(ms)", "", "(ms)",
             "(ms)", "(GiB)");
  for (const auto& record : records) {
    const double tflop = (record.cost.gemm_flop + record.cost.attention_flop) * 1e-12;
    fmt::print(
        "  {:<14} {:>7} {:>7} {:>9.2f} {:>9.2f} {:>9.2f} {:>8.1f} {:>9.1f} {:>9.2f} {:>8.2f} "
        "{:>9.2f} {:>8.2f} {:>9.2f}{}\n",
        fmt::format("{}x{}x{}", record.size.width, record.size.height, record.size.frames),
        record.tokens, record.own_tokens, record.min_ms, record.p50_ms, record.max_ms, tflop,
        tflop / record.p50_ms * 1e3, record.floor_ms, record.p50_ms / record.floor_ms,
        record.exchange_ms, record.wait_ms,
        static_cast<double>(record.peak_device_bytes) / (1 << 30),
        record.finite ? "" : "  NOT FINITE");
  }
}

void write_json(const Settings& settings, int world_size, const std::vector<Record>& records) {
  nlohmann::ordered_json json = {{"version", kVersion},
                                 {"commit", kCommit},
                                 {"ranks", world_size},
                                 {"simulated_ranks", settings.simulated_ranks},
                                 {"precision", settings.precision},
                                 {"samples", settings.samples},
                                 {"graphs", settings.graphs},
                                 {"records", nlohmann::ordered_json::array()}};
  for (const auto& record : records) {
    json["records"].push_back({{"width", record.size.width},
                               {"height", record.size.height},
                               {"frames", record.size.frames},
                               {"tokens", record.tokens},
                               {"min_ms", record.min_ms},
                               {"p50_ms", record.p50_ms},
                               {"max_ms", record.max_ms},
                               {"gemm_flop", record.cost.gemm_flop},
                               {"attention_flop", record.cost.attention_flop},
                               {"floor_ms", record.floor_ms},
                               {"exchange_ms", record.exchange_ms},
                               {"exchange_wait_ms", record.wait_ms},
                               {"peak_device_bytes", record.peak_device_bytes},
                               {"finite", record.finite}});
  }
  write_bench_json(settings.json, json);
}

ClipSize parse_size(const std::string& text) {
  ClipSize size;
  int end = 0;
  const int fields =
      std::sscanf(text.c_str(), "%ldx%ldx%ld%n", &size.width, &size.height, &size.frames, &end);
  if (fields != 3 || static_cast<size_t>(end) != text.size())
    fail(ErrorKind::usage, fmt::format("--clip is WIDTHxHEIGHTxFRAMES, not \"{}\"", text));
  return size;
}

Settings read_settings(const po::variables_map& values) {
  positional(kUsage, values);  // the word "step" itself, and nothing behind it
  if (values.count("model") == 0) fail(ErrorKind::usage, "bench step needs --model CHECKPOINT");
  Settings settings;
  settings.checkpoint = values["model"].as<std::string>();
  for (const auto& text : values["clip"].as<std::vector<std::string>>())
    settings.sizes.push_back(parse_size(text));
  settings.samples = values["samples"].as<int64_t>();
  settings.text_tokens = values["text-tokens"].as<int64_t>();
  settings.simulated_ranks = values["simulate-world"].as<int64_t>();
  settings.precision = values["precision"].as<std::string>();
  settings.graphs = values["graphs"].as<std::string>() != "off";
  settings.warmup = values["warmup"].as<int>();
  settings.iters = values["iters"].as<int>();
  if (values.count("json") != 0) settings.json = values["json"].as<std::string>();
  if (settings.samples < 1 || settings.text_tokens < 1 || settings.simulated_ranks < 0 ||
      settings.warmup < 0 || settings.iters < 1)
    fail(ErrorKind::usage, "--samples, --text-tokens and --iters must be 1 or more");
  return settings;
}

int run_on(const Settings& settings, at::Device device, comm::RankContext* ranks) {
  const bool speaks = ranks == nullptr || ranks->is_driver();
  if (speaks && !settings.json.empty()) check_output_place(settings.json, /*overwrite=*/true);
  gpu::choose_attention(gpu::AttentionBackend::automatic, device.type());
  StepBench bench(settings, device, ranks);
  std::vector<Record> records;
  for (const ClipSize& size : settings.sizes) records.push_back(bench.run(size));
  const int world_size = ranks != nullptr ? ranks->world_size() : 1;
  if (speaks) {
    print_table(settings, bench, device, world_size, records);
    if (!settings.json.empty()) write_json(settings, world_size, records);
  }
  const bool finite = std::all_of(records.begin(), records.end(),
                                  [](const Record& record) { return record.finite; });
  return finite ? 0 : exit_code(ErrorKind::non_finite);
}

}  // namespace

int bench_step(const Arguments& arguments) {
  po::options_description options("options");
  const auto count = [](int value) { return po::value<int>()->default_value(value); };
  const auto size = [](int64_t value) { return po::value<int64_t>()->default_value(value); };
  const auto text = [](const char* value) {
    return po::value<std::string>()->default_value(value);
  };
  auto add = options.add_options();
  add("model", po::value<std::string>()->value_name("CHECKPOINT"), "whose header is used");
  add("clip",
      po::value<std::vector<std::string>>()->composing()->default_value(
          {"768x512x121", "1536x1024x121"}, "768x512x121, 1536x1024x121"),
      "WIDTHxHEIGHTxFRAMES; may be given again");
  add("precision", text("bf16"), "bf16, fp32, fp8_cast or fp8_scaled_mm");
  add("simulate-world", size(0), "one rank's share of so many, with loop-back peers");
  add("graphs", text("auto"), "auto or off");
  add("allow-shared-device", "several ranks may have one GPU");
  add("samples", size(1), "samples of a pass");
  add("text-tokens", size(1024), "tokens of the text context");
  add("warmup", count(3), "passes that are not counted");
  add("iters", count(5), "passes that are");
  add("json", po::value<std::string>()->value_name("FILE"), "write the records there");
  const auto values = parse(kUsage, std::move(options), arguments);
  if (!values) return 0;
  const Settings settings = read_settings(*values);
  const at::Device device = gpu::cuda_available() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  if (launched_ranks().world_size == 1) return run_on(settings, device, nullptr);
  return comm::run_on_ranks({host().variable}, [&](comm::RankContext& ranks) {
    if (!device.is_cuda()) return run_on(settings, device, &ranks);
    const auto choice = comm::choose_gpus(ranks.facts(), values->count("allow-shared-device") != 0);
    ranks.attach_gpus(choice);
    return run_on(settings,
                  at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(
                                            choice[static_cast<size_t>(ranks.rank())])),
                  &ranks);
  });
}

}  // namespace flotilla::app
