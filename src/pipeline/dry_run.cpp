#include "pipeline/dry_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "comm/rank_context.h"
#include "config/job_files.h"
#include "gpu/device.h"
#include "io/image_reader.h"
#include "io/image_resize.h"
#include "io/metrics.h"
#include "pipeline/outputs.h"
#include "text/tokenizer.h"

namespace flotilla::pipeline {
namespace {

using Json = nlohmann::ordered_json;

// Ranks on this machine, or on one with a GPU of the given size for each.
std::vector<comm::RankFacts> assumed_ranks(const Host& host, const DryRunOptions& options) {
  comm::RankFacts facts = comm::local_facts(host.variable);
  if (options.gpu_memory_bytes) {
    facts.gpus.clear();
    for (int64_t i = 0; i < options.world_size; ++i) {
      facts.gpus.push_back({.uuid = fmt::format("assumed {}", i),
                            .bus_id = fmt::format("assumed {}", i),
                            .name = "assumed GPU",
                            .memory_bytes = *options.gpu_memory_bytes});
    }
  }
  return std::vector<comm::RankFacts>(static_cast<size_t>(options.world_size), facts);
}

std::vector<DryRun::Prompt> check_prompts(const PreparedJob& prepared) {
  const config::Job& job = prepared.job;
  const text::Tokenizer tokenizer(prepared.files->text_encoder());
  std::vector<DryRun::Prompt> prompts;
  const auto add = [&](const char* key, const std::string& prompt) {
    const auto tokens = tokenizer.encode(prompt);
    prompts.push_back({key, tokens.num_tokens, tokens.num_dropped});
    if (tokens.num_dropped == 0 || !job.text.strict_length) return;
    fail(ErrorKind::config,
         fmt::format("{} is too long: {} tokens are used, {} are dropped; shorten it, or set "
                     "text.strict_length: false",
                     key, tokens.num_tokens, tokens.num_dropped));
  };
  add("prompt", job.prompt);
  if (prepared.plan.stage_1.guidance.needs_negative_prompt())
    add("negative_prompt", job.negative_prompt);
  return prompts;
}

// Reads each image the whole way that a run does.
std::vector<DryRun::Image> check_images(const PreparedJob& prepared) {
  std::vector<DryRun::Image> images;
  for (const auto& image : prepared.job.images) {
    const at::Tensor pixels = io::read_image(image.path);  // [H, W, 3]
    images.push_back({image.path, pixels.size(1), pixels.size(0), image.frame});
    const auto& size = prepared.plan.stage_2.pixels;
    io::load_conditioning_image(image.path, size.height, size.width,
                                static_cast<int>(image.crf.value_or(0)), prepared.ffmpeg);
  }
  return images;
}

Json read_metrics(const std::filesystem::path& path) {
  std::ifstream file(path);
  Json metrics = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!metrics.is_object() || !metrics.contains("plan"))
    fail(ErrorKind::input, fmt::format("\"{}\" is no metrics file of a run", path.string()));
  return metrics;
}

// Of a run; 0 for a phase that it did not have.
double phase_seconds(const Json& metrics, const std::string& phase) {
  const auto& phases = metrics.at("phases");
  const auto found = phases.find(phase + "_s");
  return found != phases.end() && found->is_number() ? found->get<double>() : 0.0;
}

// The longest piece of work of the gap that ends with `phase`.
double gap_seconds(const Json& metrics, const Plan& plan, const std::string& phase) {
  if (metrics.at("steps").contains(phase)) {
    const auto steps = metrics["steps"][phase].get<std::vector<double>>();
    return steps.empty() ? 0.0 : *std::max_element(steps.begin(), steps.end());
  }
  if (phase == "text") return phase_seconds(metrics, "load_text") + phase_seconds(metrics, phase);
  if (phase != "decode_video") return phase_seconds(metrics, phase);
  return phase_seconds(metrics, phase) / static_cast<double>(plan.decode.num_tiles());
}

// Times of a run on as many ranks, with as many tokens and tiles.
std::vector<std::optional<double>> measured_gaps(const Plan& plan, const Forecast& forecast,
                                                 const std::filesystem::path& path) {
  std::vector<std::optional<double>> seconds(forecast.gaps.size());
  if (path.empty()) return seconds;
  const Json metrics = read_metrics(path);
  try {
    const Json& measured = metrics.at("plan");
    const bool same =
        measured.at("world_size") == plan.world_size &&
        measured.at("decode_tiles") == plan.decode.num_tiles() &&
        measured.at("stage_2").at("video_tokens") == plan.stage_2.grid.size.num_tokens() &&
        measured.at("stage_1").at("passes").size() == plan.stage_1.guidance.passes.size();
    if (!same) {
      fail(ErrorKind::input,
           fmt::format("\"{}\" measured a job of other sizes, or on another number of ranks",
                       path.string()));
    }
    for (size_t i = 0; i < seconds.size(); ++i)
      seconds[i] = gap_seconds(metrics, plan, forecast.gaps[i].phase);
  } catch (const Json::exception&) {
    fail(ErrorKind::input, fmt::format("\"{}\" is no metrics file of a run", path.string()));
  }
  return seconds;
}

std::string human(int64_t bytes) {
  return bytes == 0 ? "-" : human_bytes(static_cast<double>(bytes));
}

// Of the gaps with times; nothing when none has one.
std::optional<size_t> longest_gap(const DryRun& run) {
  std::optional<size_t> longest;
  for (size_t i = 0; i < run.gap_seconds.size(); ++i) {
    if (run.gap_seconds[i] && (!longest || *run.gap_seconds[i] > *run.gap_seconds[*longest]))
      longest = i;
  }
  return longest;
}

// Where a run can stop, so that somebody can choose how early to warn it.
void describe_gaps(const DryRun& run, std::vector<std::string>& lines) {
  for (size_t i = 0; i < run.forecast.gaps.size(); ++i) {
    const auto& gap = run.forecast.gaps[i];
    const auto& seconds = run.gap_seconds[i];
    lines.push_back(
        fmt::format("can stop after {}: {}{}", gap.phase, gap.work,
                    seconds ? fmt::format(", about {}", human_duration(*seconds)) : ""));
  }
  const auto longest = longest_gap(run);
  if (!longest) {
    lines.emplace_back(
        "longest gap    in seconds: with --measured METRICS.json, of a run of the same "
        "sizes and ranks");
    return;
  }
  lines.push_back(fmt::format(
      "longest gap    {}, about {}: warn a run earlier than that, by the time of a checkpoint too "
      "(Slurm: --signal=USR1@SECONDS)",
      run.forecast.gaps[*longest].phase, human_duration(*run.gap_seconds[*longest])));
}

void describe_memory(const Forecast& forecast, std::vector<std::string>& lines) {
  lines.push_back(fmt::format("{:<58} {:>10} {:>10}", "memory of the fullest rank", "host", "GPU"));
  for (const auto& phase : forecast.phases) {
    lines.push_back(fmt::format("  {:<56} {:>10} {:>10}", phase.phase, human(phase.host_bytes()),
                                human(phase.device_bytes())));
    for (const auto& part : phase.host)
      lines.push_back(fmt::format("    {:<54} {:>10} {:>10}", part.what, human(part.bytes), ""));
    for (const auto& part : phase.device)
      lines.push_back(fmt::format("    {:<54} {:>10} {:>10}", part.what, "", human(part.bytes)));
  }
  lines.push_back(fmt::format("  {:<56} {:>10} {:>10}", "most", human(forecast.peak_host_bytes()),
                              human(forecast.peak_device_bytes())));
  lines.push_back(fmt::format("  {:<56} {:>10} {:>10}", "there is",
                              human(forecast.host_limit_bytes),
                              human(forecast.device_limit_bytes)));
}

void describe_exchange(const Forecast& forecast, std::vector<std::string>& lines) {
  for (const auto& exchange : forecast.exchanges) {
    lines.push_back(
        fmt::format("exchange       {}: {}; a rank sends {} in its largest exchange, "
                    "{} a step, {} in all",
                    exchange.stage, exchange.method, human(exchange.largest_call_bytes),
                    human(exchange.step_bytes), human(exchange.stage_bytes)));
  }
}

void describe_inputs(const DryRun& run, std::vector<std::string>& lines) {
  for (const auto& prompt : run.prompts) {
    lines.push_back(fmt::format(
        "{:<14} {} of {} tokens{}", prompt.key, prompt.num_tokens, text::kPromptTokens,
        prompt.num_dropped > 0 ? fmt::format(", {} more are dropped", prompt.num_dropped) : ""));
  }
  for (const auto& image : run.images) {
    lines.push_back(fmt::format("image          {}, {} x {}, at frame {}", image.path.string(),
                                image.width, image.height, image.frame));
  }
  if (run.resumes) lines.push_back("resumes        " + *run.resumes);
}

Json json_of(const std::vector<MemoryPart>& parts) {
  Json json = Json::object();
  for (const auto& part : parts) json[part.what] = part.bytes;
  return json;
}

Json memory_json(const Forecast& forecast) {
  Json phases = Json::object();
  for (const auto& phase : forecast.phases) {
    phases[phase.phase] = {{"host_bytes", phase.host_bytes()},
                           {"device_bytes", phase.device_bytes()},
                           {"host", json_of(phase.host)},
                           {"device", json_of(phase.device)}};
  }
  return {{"peak_host_bytes", forecast.peak_host_bytes()},
          {"peak_device_bytes", forecast.peak_device_bytes()},
          {"host_limit_bytes", forecast.host_limit_bytes},
          {"device_limit_bytes", forecast.device_limit_bytes},
          {"phases", std::move(phases)}};
}

Json stage_json(const StagePlan& stage) {
  return {{"width", stage.pixels.width},
          {"height", stage.pixels.height},
          {"frames", stage.pixels.frames},
          {"video_tokens", stage.grid.size.num_tokens()},
          {"steps", stage.num_steps()},
          {"passes", stage.guidance.passes.size()},
          {"groups", stage.groups},
          {"tiles", stage.tiles ? stage.tiles->counts.num_tiles() : 1}};
}

}  // namespace

DryRun dry_run_job(const config::LoadedJob& loaded, const Host& host,
                   const DryRunOptions& options) {
  DryRun run;
  if (const auto found = find_checkpoint(loaded.job)) run.resumes = found->path.string();
  run.prepared = prepare_job(loaded, host, Outputs::checked, {}, assumed_ranks(host, options));
  ForecastFacts facts{
      .process_bytes = io::held_host_bytes(),
      // Of another machine that is not known.
      .host_memory_bytes = options.gpu_memory_bytes ? 0 : gpu::total_memory_bytes(at::kCPU),
      .ranks_on_host = options.world_size,
      .previews = options.previews};
  run.prompts = check_prompts(run.prepared);
  run.images = check_images(run.prepared);
  for (const auto& prompt : run.prompts)
    facts.prompt_tokens = std::max(facts.prompt_tokens, prompt.num_tokens);
  run.forecast = make_forecast(run.prepared.job, *run.prepared.files, run.prepared.plan, facts);
  run.gap_seconds = measured_gaps(run.prepared.plan, run.forecast, options.measured);
  return run;
}

std::vector<std::string> describe(const DryRun& run) {
  const auto& [job, ffmpeg, files, plan, text, original_prompt] = run.prepared;
  std::vector<std::string> lines = {fmt::format(
      "model          {} (version {}), {} on {} rank{}", files->transformer()->path().string(),
      files->model_version().empty() ? "unknown" : files->model_version(), plan.precision,
      plan.world_size, plan.world_size == 1 ? "" : "s")};
  describe_inputs(run, lines);
  for (const auto& line : plan.describe()) lines.push_back("plan           " + line);
  if (plan.padding_fraction() > 0)
    lines.push_back(
        fmt::format("padding        {:.2f} % of the tokens", 100 * plan.padding_fraction()));
  for (const auto& warning : plan.warnings) lines.push_back("warning        " + warning);
  describe_memory(run.forecast, lines);
  lines.push_back(
      fmt::format("more ranks     share the activations; each of them holds all {} of "
                  "the transformer's weights",
                  human(plan.weight_bytes)));
  describe_exchange(run.forecast, lines);
  describe_gaps(run, lines);
  for (auto& line : describe_outputs(job, plan)) lines.push_back(std::move(line));
  return lines;
}

Json to_json(const DryRun& run) {
  const auto& [job, ffmpeg, files, plan, text, original_prompt] = run.prepared;
  Json json = {{"schema_version", 1},
               {"model", files->transformer()->path().string()},
               {"model_version", files->model_version()},
               {"model_digest", files->digest()},
               {"precision", plan.precision},
               {"device", plan.device.is_cuda() ? "cuda" : "cpu"},
               {"world_size", plan.world_size},
               {"weight_bytes", plan.weight_bytes},
               {"audio_tokens", plan.audio.num_tokens()},
               {"stage_1", stage_json(plan.stage_1)},
               {"stage_2", stage_json(plan.stage_2)},
               {"decode_tiles", plan.decode.num_tiles()},
               {"padding_fraction", plan.padding_fraction()},
               {"plan", plan.describe()},
               {"warnings", plan.warnings}};
  json["prompts"] = Json::array();
  for (const auto& prompt : run.prompts) {
    json["prompts"].push_back(
        {{"key", prompt.key}, {"tokens", prompt.num_tokens}, {"dropped", prompt.num_dropped}});
  }
  json["images"] = Json::array();
  for (const auto& image : run.images) {
    json["images"].push_back({{"path", image.path.string()},
                              {"width", image.width},
                              {"height", image.height},
                              {"frame", image.frame}});
  }
  json["resumes"] = run.resumes ? Json(*run.resumes) : Json();
  json["memory"] = memory_json(run.forecast);
  json["exchange"] = Json::array();
  for (const auto& exchange : run.forecast.exchanges) {
    json["exchange"].push_back({{"stage", exchange.stage},
                                {"method", exchange.method},
                                {"largest_call_bytes", exchange.largest_call_bytes},
                                {"step_bytes", exchange.step_bytes},
                                {"stage_bytes", exchange.stage_bytes}});
  }
  json["safe_points"] = Json::array();
  for (size_t i = 0; i < run.forecast.gaps.size(); ++i) {
    const auto& seconds = run.gap_seconds[i];
    json["safe_points"].push_back({{"phase", run.forecast.gaps[i].phase},
                                   {"work", run.forecast.gaps[i].work},
                                   {"seconds", seconds ? Json(*seconds) : Json()}});
  }
  const auto longest = longest_gap(run);
  json["longest_gap"] = longest ? json["safe_points"][*longest] : Json();
  json["outputs"] = Json::array();
  for (const auto& file : config::output_files(job))
    json["outputs"].push_back({{"key", file.key}, {"path", file.path.string()}});
  return json;
}

}  // namespace flotilla::pipeline
