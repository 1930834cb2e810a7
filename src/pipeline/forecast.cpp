#include "pipeline/forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "pipeline/forecast_parts.h"
#include "pipeline/phases.h"

namespace flotilla::pipeline {
namespace {

// Pages of the libraries that are touched later than here, while kernels run for the first time.
constexpr int64_t kLibraryBytes = int64_t{24} << 20;
// What MPI takes for itself, once there are several ranks.
constexpr int64_t kMpiBytes = int64_t{8} << 20;
// On the host for each GPU: the driver's own, and what is staged while weights are read.
constexpr int64_t kDriverHostBytes = int64_t{1} << 30;
// Of a GPU: CUDA's context with the kernels, the libraries' workspaces.
constexpr int64_t kContextBytes = int64_t{1} << 30;

int64_t sum_of(const std::vector<MemoryPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, const MemoryPart& part) { return sum + part.bytes; });
}

// Collects the parts of one phase; those without bytes are left out.
class PhaseBuilder {
 public:
  PhaseBuilder(const ForecastSizes& sizes, std::string phase) : sizes_(sizes) {
    memory_.phase = std::move(phase);
    on_host("the program and its libraries", sizes.facts.process_bytes + kLibraryBytes +
                                                 (sizes.plan.world_size > 1 ? kMpiBytes : 0));
    if (!sizes.on_gpu()) return;
    on_host("CUDA on the host, weights on their way", kDriverHostBytes);
    on_device("CUDA on the GPU", kContextBytes);
  }

  void on_host(std::string what, int64_t bytes) { add(memory_.host, std::move(what), bytes); }
  // On the GPU, or on the host of a job without.
  void on_device(std::string what, int64_t bytes) {
    add(sizes_.on_gpu() ? memory_.device : memory_.host, std::move(what), bytes);
  }
  void activations(int64_t bytes) {
    on_device("activations", bytes);
    if (!sizes_.on_gpu())
      on_host("freed memory that stays with the process", kept_by_malloc(bytes));
  }
  // From load_transformer on to the last stage.
  void transformer(bool with_factors) {
    on_device("weights of the transformer", sizes_.plan.held_weights.device_bytes);
    on_host("weights of the transformer on the host", sizes_.plan.held_weights.host_bytes);
    const int64_t clean = clean_share_bytes(sizes_);
    constexpr const char* kCleanRows = "clean rows of this rank's share";
    sizes_.plan.clean_on_device ? on_device(kCleanRows, clean) : on_host(kCleanRows, clean);
    if (with_factors) on_host("factors of LoRAs for this rank's share", lora_factor_bytes(sizes_));
  }
  void video_decoder() { on_device("weights of the video decoder", decoder_weight_bytes(sizes_)); }
  // From the first preview on to the decode.
  void decoder_of_previews() {
    if (sizes_.facts.previews) video_decoder();
  }
  // LoRAs are fused where the weights lie.
  void fuse_work() {
    const int64_t bytes = fuse_work_bytes(sizes_);
    if (sizes_.plan.weight_home == transformer::WeightHome::host)
      return on_host("LoRAs at work", bytes);
    activations(bytes);
  }

  const ForecastSizes& sizes() const { return sizes_; }
  PhaseMemory take() { return std::move(memory_); }

 private:
  static void add(std::vector<MemoryPart>& parts, std::string what, int64_t bytes) {
    if (bytes > 0) parts.push_back({std::move(what), bytes});
  }

  const ForecastSizes& sizes_;
  PhaseMemory memory_;
};

bool is_two_stages(const config::Job& job) {
  return job.pipeline == config::Pipeline::ti2vid_two_stages;
}

void fill_stage(PhaseBuilder& phase, const StagePlan& stage, bool with_factors) {
  phase.transformer(with_factors);
  phase.on_device("contexts, positions and latents", stage_state_bytes(phase.sizes(), stage));
  phase.on_device("buffers of the exchange", exchange_buffer_bytes(phase.sizes(), stage));
  phase.decoder_of_previews();
  int64_t work = stage_work_bytes(phase.sizes(), stage);
  if (phase.sizes().facts.previews) work = std::max(work, preview_work_bytes(phase.sizes(), stage));
  phase.activations(work);
}

struct Row {
  const char* phase;
  bool (*runs)(const config::Job& job);
  void (*fill)(PhaseBuilder& phase);
};

bool always(const config::Job&) { return true; }

// Every phase with the formula of its memory. What a phase leaves to the next ones is counted
// there.
constexpr Row kRows[] = {
    {"enhance", [](const config::Job& job) { return job.text.enhance; },
     [](PhaseBuilder& phase) {
       phase.on_device("weights of the enhancer", enhancer_weight_bytes(phase.sizes()));
       phase.activations(text_work_bytes(phase.sizes()));
     }},
    {"text", always,
     [](PhaseBuilder& phase) {
       phase.on_device("weights of the text encoder", text_weight_bytes(phase.sizes()));
       phase.activations(text_work_bytes(phase.sizes()));
     }},
    {"encode_images", [](const config::Job& job) { return !job.images.empty(); },
     [](PhaseBuilder& phase) {
       phase.on_device("weights of the video encoder", image_encoder_weight_bytes(phase.sizes()));
       phase.activations(image_work_bytes(phase.sizes()));
     }},
    {"load_transformer", always,
     [](PhaseBuilder& phase) {
       phase.transformer(/*with_factors=*/true);
       phase.fuse_work();
     }},
    {"stage_1", always,
     [](PhaseBuilder& phase) {
       fill_stage(phase, phase.sizes().plan.stage_1, /*with_factors=*/true);
     }},
    {"upsample", always,
     [](PhaseBuilder& phase) {
       phase.transformer(/*with_factors=*/true);
       phase.decoder_of_previews();
       phase.on_device("weights of the upsampler", upsampler_weight_bytes(phase.sizes()));
       phase.activations(upsample_work_bytes(phase.sizes()));
     }},
    {"fuse_loras", is_two_stages,
     [](PhaseBuilder& phase) {
       phase.transformer(/*with_factors=*/true);
       phase.decoder_of_previews();
       phase.fuse_work();
     }},
    {"stage_2", always,
     [](PhaseBuilder& phase) {
       fill_stage(phase, phase.sizes().plan.stage_2, !is_two_stages(phase.sizes().job));
     }},
    {"decode_audio", [](const config::Job& job) { return job.output.audio; },
     [](PhaseBuilder& phase) {
       phase.on_device("weights of the audio decoder and the vocoder",
                       audio_weight_bytes(phase.sizes()));
       phase.activations(audio_work_bytes(phase.sizes()));
     }},
    {"decode_video", always,
     [](PhaseBuilder& phase) {
       phase.video_decoder();
       phase.on_device("frames that the driver blends", blend_bytes(phase.sizes()));
       phase.on_host("frames on their way to the files", frame_bytes(phase.sizes()));
       phase.activations(decode_work_bytes(phase.sizes()));
     }},
};

std::vector<SafeGap> safe_gaps(const Plan& plan) {
  const int64_t loaded = plan.weight_home == transformer::WeightHome::file
                             ? plan.held_weights.device_bytes
                             : plan.weight_bytes;
  std::vector<SafeGap> gaps = {
      {"text", "the text encoder is loaded and reads the prompts"},
      {"load_transformer",
       fmt::format("{} of weights are loaded", human_bytes(static_cast<double>(loaded)))},
      {"upsample", "the whole latent"},
  };
  for (const StagePlan* stage : {&plan.stage_1, &plan.stage_2}) {
    const size_t passes = stage->guidance.passes.size();
    gaps.push_back({stage->name, fmt::format("a step of {} video and {} audio tokens, {} pass{}",
                                             stage->grid.size.num_tokens(), plan.audio.num_tokens(),
                                             passes, passes == 1 ? "" : "es")});
  }
  const int64_t tiles = plan.decode.num_tiles();
  gaps.push_back({"decode_video", tiles == 1 ? "the whole decode: it is not tiled"
                                             : fmt::format("one of {} tiles", tiles)});
  return gaps;
}

// What is said when memory runs out, and here before it does.
std::string too_much(const PhaseMemory& phase, const std::vector<MemoryPart>& parts,
                     const char* where, int64_t limit) {
  const auto& largest = *std::max_element(
      parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  return fmt::format(
      "{} will need {} of {} memory on a rank, where there are {}; the largest part: {}, {}; {}",
      phase.phase, human_bytes(static_cast<double>(sum_of(parts))), where,
      human_bytes(static_cast<double>(limit)), largest.what,
      human_bytes(static_cast<double>(largest.bytes)), memory_advice(phase.phase));
}

}  // namespace

int64_t PhaseMemory::host_bytes() const { return sum_of(host); }
int64_t PhaseMemory::device_bytes() const { return sum_of(device); }

const PhaseMemory& Forecast::phase(std::string_view name) const {
  const auto at = std::find_if(phases.begin(), phases.end(),
                               [&](const PhaseMemory& phase) { return phase.phase == name; });
  FLOTILLA_ASSERT(at != phases.end());
  return *at;
}

int64_t Forecast::peak_host_bytes() const {
  int64_t most = 0;
  for (const auto& phase : phases) most = std::max(most, phase.host_bytes());
  return most;
}

int64_t Forecast::peak_device_bytes() const {
  int64_t most = 0;
  for (const auto& phase : phases) most = std::max(most, phase.device_bytes());
  return most;
}

Forecast make_forecast(const config::Job& job, const ModelFiles& files, const Plan& plan,
                       const ForecastFacts& facts) {
  const ForecastSizes sizes(job, files, plan, facts);
  Forecast forecast;
  forecast.world_size = plan.world_size;
  forecast.host_limit_bytes = facts.host_memory_bytes / facts.ranks_on_host;
  if (plan.device.is_cuda()) forecast.device_limit_bytes = plan.memory_bytes;
  for (const Row& row : kRows) {
    if (!row.runs(job)) continue;
    PhaseBuilder phase(sizes, row.phase);
    row.fill(phase);
    forecast.phases.push_back(phase.take());
  }
  for (const StagePlan* stage : {&plan.stage_1, &plan.stage_2}) {
    StageExchange exchange = stage_exchange(sizes, *stage);
    if (exchange.step_bytes > 0) forecast.exchanges.push_back(std::move(exchange));
  }
  forecast.gaps = safe_gaps(plan);
  return forecast;
}

void check_fits(const Forecast& forecast) {
  for (const PhaseMemory& phase : forecast.phases) {
    if (forecast.device_limit_bytes > 0 && phase.device_bytes() > forecast.device_limit_bytes)
      fail(ErrorKind::memory, too_much(phase, phase.device, "GPU", forecast.device_limit_bytes));
    if (forecast.host_limit_bytes > 0 && phase.host_bytes() > forecast.host_limit_bytes)
      fail(ErrorKind::memory, too_much(phase, phase.host, "host", forecast.host_limit_bytes));
  }
}

}  // namespace flotilla::pipeline
