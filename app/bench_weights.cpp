// flotilla bench load and flotilla bench lora: how fast the weights of a job come from its files,
// and how fast its LoRAs are swapped, on each rank.
#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/bench_support.h"
#include "app/command.h"
#include "app/launcher.h"
#include "app/options.h"
#include "audio/audio_vae.h"
#include "audio/vocoder.h"
#include "base/error.h"
#include "base/temp_file.h"
#include "comm/rank_context.h"
#include "gpu/device.h"
#include "parallel/distributed_text_encoder.h"
#include "pipeline/precision.h"
#include "pipeline/run_job.h"
#include "upsampler/latent_upsampler.h"
#include "vae/decoder.h"
#include "vae/encoder.h"
#include "version.h"

namespace flotilla::app {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr Usage kLoadUsage = {
    "bench load", "[mpirun -n N] flotilla bench load --job JOB.yaml [options]",
    "Loads each model of the job and lets it go again. Seconds from the files to weights that are\n"
    "ready on all ranks; bytes: what a rank itself read. The first round of a cold machine reads\n"
    "the disk, later ones the page cache.",
    "\"load\"", /*many_ranks=*/true};
constexpr Usage kLoraUsage = {
    "bench lora", "[mpirun -n N] flotilla bench lora --job JOB.yaml [options]",
    "Fuses all LoRAs of the job into its transformer and takes them out again. bytes: the clean\n"
    "rows that a rank keeps and changes; the ranks then exchange them. first: with the reading of\n"
    "the files and the making of the clean copies.",
    "\"lora\"", /*many_ranks=*/true};

// What one rank did once.
struct Sample {
  std::string what;
  int rank = 0;
  int64_t bytes = 0;
  double seconds = 0;

  double gigabytes_per_s() const { return static_cast<double>(bytes) / seconds / 1e9; }
};

class Bench {
 public:
  Bench(const pipeline::PreparedJob& prepared, const pipeline::Ranks& ranks)
      : prepared_(prepared), ranks_(ranks) {}

  // Runs `work` on all ranks at once; it gives the bytes of this rank. Collective.
  void measure(const std::string& what, const std::function<int64_t()>& work) {
    if (ranks_.context != nullptr) ranks_.world()->barrier(what, 600);
    const auto start = Clock::now();
    const int64_t bytes = ranks_.agreed(work);
    gpu::synchronize(prepared_.plan.device);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    samples_.push_back({what, ranks_.rank(), bytes, seconds});
  }

  // Of all ranks, those of one measurement together. Collective.
  std::vector<Sample> gather() const {
    Json own = Json::array();
    for (const Sample& sample : samples_)
      own.push_back({sample.what, sample.rank, sample.bytes, sample.seconds});
    std::vector<std::string> texts = {own.dump()};
    if (ranks_.context != nullptr) texts = ranks_.world()->all_gather(texts.front());
    std::vector<Json> of_rank;
    for (const auto& text : texts) of_rank.push_back(Json::parse(text));
    std::vector<Sample> all;
    for (size_t i = 0; i < samples_.size(); ++i) {
      for (const Json& rank : of_rank) {
        const Json& sample = rank.at(i);
        all.push_back({sample.at(0), sample.at(1), sample.at(2), sample.at(3)});
      }
    }
    return all;
  }

 private:
  const pipeline::PreparedJob& prepared_;
  const pipeline::Ranks& ranks_;
  std::vector<Sample> samples_;
};

int64_t load_text(const pipeline::PreparedJob& prepared, const pipeline::Ranks& ranks) {
  const auto& [job, files, plan] = std::tie(prepared.job, *prepared.files, prepared.plan);
  const auto encoder = ranks.agreed([&] {
    return std::make_unique<parallel::DistributedTextEncoder>(
        ranks.context != nullptr ? &ranks.context->text() : nullptr,
        parallel::TextEncoderSetup{.checkpoint = files.transformer(),
                                   .folder = files.text_encoder(),
                                   .dtype = plan.dtype,
                                   .device = plan.device,
                                   .split = job.text.parallel});
  });
  encoder->load();
  return encoder->bytes_read();
}

void bench_models(Bench& bench, const pipeline::PreparedJob& prepared,
                  const pipeline::Ranks& ranks) {
  const auto& [job, files, plan] = std::tie(prepared.job, *prepared.files, prepared.plan);
  const auto load = ranks.load_arena();
  // `make` builds a model and gives what it read besides the files of the job.
  const auto model = [&](const std::string& what, const std::function<int64_t()>& make) {
    bench.measure(what, [&] {
      const int64_t before = files.bytes_read();
      const int64_t besides = make();
      return files.bytes_read() - before + besides;
    });
  };
  model("text encoder", [&] { return load_text(prepared, ranks); });
  model("transformer", [&] {
    transformer::Transformer(files.transformer(), pipeline::storage_policy(job.precision),
                             plan.device, load);
    return 0;
  });
  model("video encoder", [&] {
    vae::VideoEncoder::from_checkpoint(files.video_vae(), plan.dtype, plan.device, load);
    return 0;
  });
  model("video decoder", [&] {
    vae::VideoDecoder::from_checkpoint(files.video_vae(), plan.dtype, plan.device, load);
    return 0;
  });
  model("upsampler", [&] {
    upsampler::LatentUpsampler::from_checkpoint(files.upsampler(), plan.dtype, plan.device, load);
    return 0;
  });
  model("sound", [&] {
    if (!ranks.is_driver()) return 0;
    audio::AudioDecoder::from_checkpoint(files.audio_vae(), plan.dtype, plan.device);
    audio::Vocoder::from_checkpoint(files.audio_vae(), plan.device);
    return 0;
  });
}

void bench_swaps(Bench& bench, const pipeline::PreparedJob& prepared, const pipeline::Ranks& ranks,
                 int iters) {
  const auto& [job, files, plan] = std::tie(prepared.job, *prepared.files, prepared.plan);
  const auto model = ranks.agreed([&] {
    return transformer::Transformer(files.transformer(), pipeline::storage_policy(job.precision),
                                    plan.device, ranks.load_arena());
  });
  parallel::SharedWeightsOptions options;
  if (plan.clean_on_device) options.clean_device = plan.device;
  parallel::SharedWeights weights(model.arena(), ranks.world(), options);
  const auto set = model.lora_set(files.stage_2_loras());
  for (int i = 0; i < iters; ++i) {
    bench.measure(i == 0 ? "fuse (first)" : "fuse", [&] {
      weights.set_loras(set);
      return weights.clean_bytes();
    });
    bench.measure("restore", [&] {
      weights.set_loras({});
      return weights.clean_bytes();
    });
  }
}

void print_table(const char* name, const pipeline::PreparedJob& prepared,
                 const std::vector<Sample>& samples) {
  const auto& plan = prepared.plan;
  fmt::print("# flotilla bench {} {} ({})  torch {}  {}  ranks {}  {}\n", name, kVersion, kCommit,
             kTorchVersion, gpu::device_name(plan.device), plan.world_size,
             config::to_string(prepared.job.precision));
  fmt::print("# {:<16} {:>4} {:>14} {:>10} {:>10}\n# {:<16} {:>4} {:>14} {:>10} {:>10}\n", "what",
             "rank", "bytes", "time", "rate", "", "", "(B)", "(s)", "(GB/s)");
  for (const Sample& sample : samples) {
    fmt::print("  {:<16} {:>4} {:>14} {:>10.4f} {:>10.3f}\n", sample.what, sample.rank,
               sample.bytes, sample.seconds, sample.gigabytes_per_s());
  }
}

void write_json(const std::string& path, const char* name, const std::vector<Sample>& samples) {
  Json json = {
      {"version", kVersion}, {"commit", kCommit}, {"bench", name}, {"samples", Json::array()}};
  for (const Sample& sample : samples) {
    json["samples"].push_back({{"what", sample.what},
                               {"rank", sample.rank},
                               {"bytes", sample.bytes},
                               {"time_s", sample.seconds},
                               {"rate_gbps", sample.gigabytes_per_s()}});
  }
  write_bench_json(path, json);
}

using Body =
    std::function<void(Bench&, const pipeline::PreparedJob&, const pipeline::Ranks&, int iters)>;

int run_bench(const Usage& usage, const char* name, const Arguments& arguments, const Body& body) {
  po::options_description options = job_options();
  options.add_options()("job", po::value<std::string>()->value_name("JOB.yaml"),
                        "the job whose models are measured")(
      "iters", po::value<int>()->default_value(3), "rounds")(
      "json", po::value<std::string>()->value_name("FILE"), "write every sample there");
  const auto values = parse(usage, std::move(options), arguments);
  if (!values) return 0;
  positional(usage, *values);  // the benchmark's own name, and nothing behind it
  if (values->count("job") == 0)
    fail(ErrorKind::usage, fmt::format("{} needs --job JOB.yaml", usage.command));
  const int iters = (*values)["iters"].as<int>();
  if (iters < 1) fail(ErrorKind::usage, "--iters must be 1 or more");
  const std::string json = values->count("json") != 0 ? (*values)["json"].as<std::string>() : "";
  if (!json.empty()) check_output_place(json, /*overwrite=*/true);
  const auto loaded = config::load_job((*values)["job"].as<std::string>(), job_overrides(*values));
  const auto measure = [&](const pipeline::Ranks& ranks) {
    const auto prepared = ranks.agreed(
        [&] { return pipeline::prepare_job(loaded, host(), pipeline::Outputs::ignored, ranks); });
    ranks.attach_gpus(prepared.plan.gpus);
    Bench bench(prepared, ranks);
    body(bench, prepared, ranks, iters);
    const auto samples = bench.gather();
    if (!ranks.is_driver()) return 0;
    print_table(name, prepared, samples);
    if (!json.empty()) write_json(json, name, samples);
    return 0;
  };
  if (launched_ranks().world_size == 1) return measure({});
  return comm::run_on_ranks({.environment = host().variable},
                            [&](comm::RankContext& context) { return measure({&context}); });
}

}  // namespace

int bench_load(const Arguments& arguments) {
  return run_bench(kLoadUsage, "load", arguments,
                   [](Bench& bench, const auto& prepared, const auto& ranks, int iters) {
                     for (int i = 0; i < iters; ++i) bench_models(bench, prepared, ranks);
                   });
}

int bench_lora(const Arguments& arguments) {
  return run_bench(kLoraUsage, "lora", arguments,
                   [](Bench& bench, const auto& prepared, const auto& ranks, int iters) {
                     ranks.agreed([&] {
                       if (prepared.files->stage_2_loras().empty())
                         fail(ErrorKind::config, "the job has no LoRA (models.loras)");
                     });
                     bench_swaps(bench, prepared, ranks, iters);
                   });
}

}  // namespace flotilla::app
