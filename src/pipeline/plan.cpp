#include "pipeline/plan.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "audio/audio_format.h"
#include "base/error.h"
#include "base/text.h"
#include "comm/head_exchange.h"
#include "gpu/device.h"
#include "pipeline/precision.h"
#include "text/tokenizer.h"
#include "transformer/transformer.h"
#include "vae/config.h"

namespace flotilla::pipeline {
namespace {

diffusion::Sigmas given_sigmas(const config::Sigmas& given) {
  diffusion::Sigmas sigmas(given.begin(), given.end());
  diffusion::check_sigmas(sigmas);
  return sigmas;
}

StagePlan plan_stage(const std::string& name, const config::Video& video, int64_t shrink,
                     const vae::DecoderConfig& decoder, diffusion::Sigmas sigmas) {
  StagePlan stage;
  stage.name = name;
  stage.pixels = {video.num_frames, video.height / shrink, video.width / shrink,
                  video.frame_rate.to_double()};
  stage.grid.scale = decoder.scale();
  stage.grid.size =
      diffusion::video_latent_size(stage.pixels, decoder.latent_channels, decoder.scale());
  stage.grid.frame_rate = stage.pixels.frame_rate;
  stage.sigmas = std::move(sigmas);
  return stage;
}

// Over the ranks. Exact runs on any number of ranks keep to one tile unless a grid is given.
vae::TilePlan plan_decoder_tiles(const config::Job& job, const vae::DecoderConfig& decoder,
                                 const Plan& plan) {
  const diffusion::VideoLatentSize& latent = plan.stage_2.grid.size;
  parallel::DecoderGrid grid{{}, job.decoder.tiles.overlap.cells};
  if (const auto& given = job.decoder.tiles.grid) {
    grid.counts = {(*given)[0], (*given)[1], (*given)[2]};
  } else if (job.reproducible == config::Reproducible::run) {
    grid.counts = parallel::automatic_decoder_counts(latent, grid.overlap, plan.world_size);
  }
  return parallel::plan_decoder_grid(grid, latent, decoder.scale());
}

// Inside a rank, of the tiles of `grid`. Ranks on CPUs share the memory that `auto` looks at.
diffusion::VideoTiling tiling_of(const config::Job& job, const vae::DecoderConfig& decoder,
                                 const Plan& plan, const vae::TilePlan& grid) {
  using config::TilingMode;
  if (job.decoder.tiling.mode == TilingMode::off) return {};
  if (job.decoder.tiling.mode == TilingMode::automatic) {
    const int64_t sharers = plan.device.is_cpu() ? std::min(plan.world_size, grid.num_tiles()) : 1;
    diffusion::VideoTiling tiling =
        vae::automatic_tiling(decoder, parallel::largest_tile(grid, plan.stage_2.grid.size),
                              static_cast<int64_t>(c10::elementSize(plan.dtype)),
                              plan.memory_bytes / vae::kDecodeMemoryShare / sharers);
    if (grid.frames.size() > 1) tiling.frames = {};  // time is cut once
    return tiling;
  }
  diffusion::VideoTiling tiling;
  const auto axis = [](const config::AxisTiling& given) {
    return given.size ? diffusion::AxisTiling::of_size(*given.size, given.overlap)
                      : diffusion::AxisTiling{};
  };
  tiling.frames = axis(job.decoder.tiling.temporal);
  tiling.height = axis(job.decoder.tiling.spatial);
  tiling.width = axis(job.decoder.tiling.spatial);
  return tiling;
}

diffusion::Sigmas stage_1_schedule(const config::Job& job) {
  if (job.pipeline == config::Pipeline::distilled) return diffusion::distilled_sigmas();
  FLOTILLA_ASSERT(job.stage_1.steps.has_value());
  return diffusion::ltx2_sigmas(*job.stage_1.steps);
}

// Positions beyond the table's range were never trained: the clip degrades, so it is said.
void warn_about_positions(const config::Video& video, const transformer::TransformerConfig& model,
                          Plan& plan) {
  const auto& max_pos = model.video.max_pos;  // seconds, pixels, pixels
  const double duration = static_cast<double>(video.num_frames) / video.frame_rate.to_double();
  const auto check = [&plan](const char* key, double value, int64_t limit, const char* unit) {
    if (value <= static_cast<double>(limit)) return;
    plan.warnings.push_back(
        fmt::format("{} makes {:g} {}, beyond the {} {} that the model's position table covers; "
                    "expect degraded output",
                    key, value, unit, limit, unit));
  };
  check("video.num_frames", duration, max_pos[0], "seconds");
  check("video.height", static_cast<double>(video.height), max_pos[1], "pixels");
  check("video.width", static_cast<double>(video.width), max_pos[2], "pixels");
}

// Torch's CPU generator takes a seed of 64 bits and uses the low half, in the reference too.
void warn_about_seed(const config::Job& job, Plan& plan) {
  constexpr uint64_t kUsedBits = 0xFFFF'FFFF;
  const uint64_t seed = job.seed.value_or(0);
  if (seed <= kUsedBits || job.noise_device != config::NoiseDevice::cpu) return;
  plan.warnings.push_back(fmt::format(
      "seed {} is above {}: the CPU generator uses its low 32 bits alone, so the noise is "
      "that of seed {}",
      seed, kUsedBits, seed & kUsedBits));
}

// Below this many video tokens a rank, exchanging costs more than it saves on any machine.
constexpr int64_t kFewTokensPerRank = 64;

// The most groups that the passes can be dealt over: passes first, tokens inside the groups.
int64_t choose_groups(const config::Job& job, const GuidancePlan& guidance, int64_t world_size) {
  if (job.stage_1.guidance_groups) return *job.stage_1.guidance_groups;
  for (const int64_t groups : {4, 2}) {
    if (world_size % groups == 0 && groups <= static_cast<int64_t>(guidance.passes.size()))
      return groups;
  }
  return 1;
}

void check_sequence(const config::Job& job, const transformer::TransformerConfig& model,
                    const StagePlan& stage, int64_t group_size) {
  if (group_size == 1) return;
  comm::check_heads(model.video.heads, static_cast<int>(group_size));
  comm::check_token_count(stage.grid.size.num_tokens(), job.sp.max_tokens);
}

parallel::TileGrid plan_tile_grid(const config::Job& job, const StagePlan& stage,
                                  int64_t world_size) {
  const bool has_reference = std::any_of(job.images.begin(), job.images.end(),
                                         [](const auto& image) { return image.frame < 0; });
  parallel::check_first_sigma(stage.sigmas.front(), job.stage_2.tiles.max_first_sigma,
                              has_reference);
  const auto& grid = job.stage_2.tiles.grid;
  const auto counts = grid ? parallel::TileCounts{(*grid)[0], (*grid)[1], (*grid)[2]}
                           : parallel::balanced_tile_counts(world_size);
  return parallel::make_tile_grid(stage.grid.size, counts, job.stage_2.tiles.overlap);
}

// Which method each stage uses; what the methods refuse is refused here, before any work.
void plan_parallel(const config::Job& job, const transformer::TransformerConfig& model,
                   Plan& plan) {
  const int64_t world_size = plan.world_size;
  StagePlan& first = plan.stage_1;
  if (world_size > 1) {
    first.groups = choose_groups(job, first.guidance, world_size);
    if (job.stage_1.parallel == config::Stage1Parallel::sp) first.method = StageParallel::sequence;
  }
  StagePlan& second = plan.stage_2;
  if (job.stage_2.parallel == config::Stage2Parallel::tdp) {
    second.method = StageParallel::tiles;
    if (!job.stage_2.sigmas) second.sigmas = diffusion::tiled_stage_2_sigmas();
    second.tiles = plan_tile_grid(job, second, world_size);
  } else if (world_size > 1 && job.stage_2.parallel == config::Stage2Parallel::sp) {
    second.method = StageParallel::sequence;
  }
  for (const StagePlan* stage : {&first, &second}) {
    if (stage->method != StageParallel::sequence) continue;
    const int64_t group_size = world_size / stage->groups;
    check_sequence(job, model, *stage, group_size);
    const int64_t tokens = stage->grid.size.num_tokens() / group_size;
    if (group_size > 1 && tokens < kFewTokensPerRank) {
      plan.warnings.push_back(fmt::format(
          "{}: {} video tokens on {} ranks are {} a rank; fewer ranks are likely faster",
          stage->name, stage->grid.size.num_tokens(), group_size, tokens));
    }
  }
  // Exact runs compute pass by pass: a batch would change the rows that are computed together.
  if (job.reproducible == config::Reproducible::world) first.guidance.order = PassOrder::sequence;
}

RankDevices first_devices(const config::Job& job) {
  const at::Device own =
      job.device == config::Device::cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  return {own, {}, gpu::total_memory_bytes(own)};
}

// The memory of a CPU is the host's: weights are there already.
transformer::WeightHome home_of(config::Offload offload, at::Device device) {
  if (offload == config::Offload::disk) return transformer::WeightHome::file;
  const bool moves = offload == config::Offload::cpu && device.is_cuda();
  return moves ? transformer::WeightHome::host : transformer::WeightHome::device;
}

// Weights and clean rows together may take this much of a GPU; the rest is for activations.
constexpr double kWeightsShare = 0.6;

// Swapping LoRAs is ten times as fast where the clean rows need not cross from the host. Decided
// from sizes alone, so alike on all ranks: clean rows are a rank's share of the weights at most.
bool clean_rows_fit(const Plan& plan, const ModelFiles& files, const config::Job& job) {
  if (!plan.device.is_cuda() || plan.weight_home != transformer::WeightHome::device ||
      job.models.fixed_loras || files.stage_2_loras().empty())
    return false;
  const double bytes =
      static_cast<double>(plan.weight_bytes) * (1.0 + 1.0 / static_cast<double>(plan.world_size));
  return bytes <= kWeightsShare * static_cast<double>(plan.memory_bytes);
}

void plan_weights(const config::Job& job, const ModelFiles& files, Plan& plan) {
  const loader::StoragePolicy policy = storage_policy(job.precision);
  plan.dtype = policy.dtype;
  plan.precision = policy.name();
  plan.weight_bytes = transformer::weight_bytes(files.transformer(), policy);
  plan.weight_home = home_of(job.offload, plan.device);
  plan.held_weights = transformer::held_weights(files.transformer(), policy, plan.weight_home,
                                                plan.device.is_cuda());
  plan.clean_on_device = clean_rows_fit(plan, files, job);
  if (job.offload == config::Offload::cpu && plan.device.is_cpu())
    plan.warnings.push_back("offload: cpu changes nothing on a CPU: the weights are there already");
}

std::string describe_weights(const Plan& plan) {
  const auto human = [](int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const std::string all = human(plan.weight_bytes);
  if (plan.weight_home == transformer::WeightHome::device)
    return fmt::format(
        "weights: the transformer takes {} on each rank as {}{}", all, plan.precision,
        plan.clean_on_device ? ", the clean rows of its share beside them on the GPU" : "");
  const auto& [on_device, on_host] = plan.held_weights;
  const bool from_host = plan.weight_home == transformer::WeightHome::host;
  std::string line = fmt::format(
      "weights: the transformer's {} as {} {}, its blocks come one by one and take {}", all,
      plan.precision, from_host ? "lie on the host" : "stay in the file", human(on_device));
  if (plan.device.is_cuda()) line += " of the GPU, without CUDA graphs";
  return line + (from_host ? " (offload: cpu)" : " (offload: disk)");
}

std::string describe_text(const config::Text& text, int64_t world_size) {
  std::string line;
  if (text.enhance) line = "the driver writes a better prompt first";
  if (world_size == 1) return line;
  return fmt::format(
      "{}{} over {} ranks", line.empty() ? "" : line + ", then ",
      text.parallel == config::TextParallel::shard ? "the encoder's layers" : "the prompts",
      world_size);
}

std::string describe_parallel(const StagePlan& stage, int64_t world_size) {
  if (stage.method == StageParallel::tiles) return ", TDP: " + stage.tiles->describe();
  if (world_size == 1) return "";
  std::string text = stage.groups > 1 ? fmt::format(", {} groups of {} ranks", stage.groups,
                                                    world_size / stage.groups)
                                      : "";
  const int64_t group_size = world_size / stage.groups;
  if (stage.method == StageParallel::sequence && group_size > 1) {
    text += fmt::format(", SP over {} ranks", group_size);
  } else if (stage.groups == 1) {
    text += ", alike on all ranks";
  }
  return text;
}

}  // namespace

double Plan::padding_fraction() const {
  int64_t padded = 0;
  int64_t all = 0;
  for (const StagePlan* stage : {&stage_1, &stage_2}) {
    const int64_t group_size = world_size / stage->groups;
    if (stage->method != StageParallel::sequence || group_size == 1) continue;
    const int64_t tokens = stage->grid.size.num_tokens();
    const int64_t held = (tokens + group_size - 1) / group_size * group_size;
    padded += held - tokens;
    all += held;
  }
  return all == 0 ? 0.0 : static_cast<double>(padded) / static_cast<double>(all);
}

Plan make_plan(const config::Job& job, const ModelFiles& files, int64_t world_size,
               const std::optional<RankDevices>& devices) {
  Plan plan;
  plan.world_size = world_size;
  const RankDevices& placed = devices ? *devices : first_devices(job);
  plan.device = placed.own;
  plan.gpus = placed.gpus;
  plan.memory_bytes = placed.memory_bytes;
  plan_weights(job, files, plan);
  plan.text = describe_text(job.text, world_size);
  const auto decoder = vae::DecoderConfig::from_json(vae::locate_vae(*files.video_vae()).config);
  plan.stage_1 =
      plan_stage("stage_1", job.video, 2, decoder,
                 job.stage_1.sigmas ? given_sigmas(*job.stage_1.sigmas) : stage_1_schedule(job));
  plan.stage_2 = plan_stage("stage_2", job.video, 1, decoder,
                            job.stage_2.sigmas ? given_sigmas(*job.stage_2.sigmas)
                                               : diffusion::distilled_stage_2_sigmas());
  const loader::ConfigReader reader(files.audio_vae()->config(),
                                    files.audio_vae()->path().string() + ": config");
  const auto audio = audio::AudioFormat::from_json(reader.object("audio_vae"));
  plan.audio_timing = audio.timing();
  plan.audio = diffusion::audio_latent_size(plan.stage_2.pixels, audio.latent_channels,
                                            audio.latent_bins(), plan.audio_timing);
  const vae::TilePlan grid = plan_decoder_tiles(job, decoder, plan);
  plan.decode =
      parallel::plan_decode(grid, tiling_of(job, decoder, plan, grid), decoder.scale(), world_size);
  plan.format = {job.video.width,
                 job.video.height,
                 job.video.num_frames,
                 {job.video.frame_rate.numerator(), job.video.frame_rate.denominator()}};
  const auto model = transformer::TransformerConfig::from_checkpoint(*files.transformer());
  warn_about_seed(job, plan);
  warn_about_positions(job.video, model, plan);
  if (job.pipeline == config::Pipeline::ti2vid_two_stages) {
    GuidancePlan& guidance = plan.stage_1.guidance;
    guidance = plan_guidance(job, plan.stage_1.grid.size.num_tokens() + plan.audio.num_tokens());
    for (auto& warning : guidance_warnings(job, guidance, model.num_layers))
      plan.warnings.push_back(std::move(warning));
  }
  plan_parallel(job, model, plan);
  return plan;
}

std::vector<std::string> Plan::describe() const {
  std::vector<std::string> lines = {describe_weights(*this)};
  if (!text.empty()) lines.push_back("text: " + text);
  for (const StagePlan* stage : {&stage_1, &stage_2}) {
    lines.push_back(
        fmt::format("{}: {} x {}, {} frames, {} video tokens, {} audio tokens, {} steps, {}",
                    stage->name, stage->pixels.width, stage->pixels.height, stage->pixels.frames,
                    stage->grid.size.num_tokens(), audio.num_tokens(), stage->num_steps(),
                    stage->guidance.describe() + describe_parallel(*stage, world_size)));
  }
  lines.push_back("decode: " + decode.describe(world_size));
  return lines;
}

int64_t shared_text_tokens(const config::Job& job) {
  return job.reproducible == config::Reproducible::world ? 0 : text::kPromptTokens;
}

}  // namespace flotilla::pipeline
