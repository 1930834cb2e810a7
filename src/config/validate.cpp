#include "config/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "config/job_files.h"
#include "config/usage.h"

namespace flotilla::config {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kPixelsPerLatent = 32;
constexpr int64_t kFramesPerLatent = 8;
constexpr int64_t kStageScale = 2;  // stage 1 works at half size

// Adds problems at the place of their key, unless the key is known to be wrong already.
class Checker {
 public:
  Checker(const Job& job, const Origins& origins, Problems& problems)
      : job_(job), origins_(origins), problems_(problems) {}

  const Job& job() const { return job_; }
  void add(const std::string& key, std::string text) {
    if (!problems_.concerns(key)) problems_.add(origins_.place(key), key, std::move(text));
  }
  void check(bool holds, const std::string& key, std::string_view text) {
    if (!holds) add(key, std::string(text));
  }
  bool is_sound(const std::string& key) const { return !problems_.concerns(key); }
  const Origins& origins() const { return origins_; }

 private:
  const Job& job_;
  const Origins& origins_;
  Problems& problems_;
};

void check_side(Checker& checker, const std::string& key, int64_t size) {
  constexpr int64_t kStep = kPixelsPerLatent * kStageScale;
  if (size % kStep == 0) return;
  const int64_t below = size / kStep * kStep;
  checker.add(key, fmt::format("{} is not a multiple of {} (stage 1 works at half size, and every "
                               "stage needs multiples of {}); nearest: {} or {}",
                               size, kStep, kPixelsPerLatent, below, below + kStep));
}

void check_video(Checker& checker) {
  const Video& video = checker.job().video;
  check_side(checker, "video.width", video.width);
  check_side(checker, "video.height", video.height);
  if (video.num_frames % kFramesPerLatent != 1) {
    const int64_t below = (video.num_frames - 1) / kFramesPerLatent * kFramesPerLatent + 1;
    checker.add("video.num_frames",
                fmt::format("{} is not 8k + 1 (the first frame is one latent, each further latent "
                            "is {} frames); nearest: {} or {}",
                            video.num_frames, kFramesPerLatent, below, below + kFramesPerLatent));
  }
}

void check_models(Checker& checker) {
  const Models& models = checker.job().models;
  const std::pair<std::string, const fs::path&> parts[] = {
      {"models.transformer", models.transformer},
      {"models.video_vae", models.video_vae},
      {"models.audio_vae", models.audio_vae}};
  const bool has_part = std::any_of(std::begin(parts), std::end(parts),
                                    [](const auto& part) { return !part.second.empty(); });
  if (!models.checkpoint.empty() || !checker.is_sound("models.checkpoint")) {
    for (const auto& [key, path] : parts) {
      checker.check(path.empty(), key,
                    "is given beside models.checkpoint, which holds that part already; keep one "
                    "of the two");
    }
  } else if (has_part) {
    for (const auto& [key, path] : parts) {
      checker.check(!path.empty(), key, "is missing; the other parts of the model are given apart");
    }
  } else {
    checker.add("models.checkpoint",
                "is missing; expected path (or models.transformer, models.video_vae and "
                "models.audio_vae)");
  }
}

void check_sigmas(Checker& checker, const std::string& key, const std::optional<Sigmas>& sigmas) {
  if (!sigmas) return;
  if (sigmas->size() < 2) {
    checker.add(key, fmt::format("{} noise levels; expected at least 2", sigmas->size()));
    return;
  }
  // Compared as the 32-bit numbers that the stages compute with: 1e-300 is 0 there.
  const auto rise = std::adjacent_find(sigmas->begin(), sigmas->end(), [](double a, double b) {
    return static_cast<float>(b) >= static_cast<float>(a);
  });
  if (rise != sigmas->end()) {
    const bool is_close = *(rise + 1) < *rise;
    checker.add(key,
                fmt::format("element {}: {} is followed by {}{}; noise levels must fall strictly",
                            rise - sigmas->begin(), *rise, *(rise + 1),
                            is_close ? ", the same 32-bit number" : ""));
  }
  if (sigmas->back() != 0.0) {
    checker.add(key, fmt::format("ends with {}; the last noise level must be 0", sigmas->back()));
  }
}

void check_stage_1(Checker& checker) {
  const Stage1& stage = checker.job().stage_1;
  check_sigmas(checker, "stage_1.sigmas", stage.sigmas);
  checker.check(stage.sigmas || stage.steps.value_or(2) >= 2, "stage_1.steps",
                "1 step; the model's schedule begins to make sense at 2 (or give stage_1.sigmas)");
  const int64_t groups = stage.guidance_groups.value_or(1);
  checker.check(groups != 3, "stage_1.guidance_groups", "found 3; expected auto, 1, 2 or 4");
}

void check_guidance(Checker& checker, const std::string& key, const ModalityGuidance& guidance) {
  if (!guidance.stg_blocks) return;
  const auto& blocks = *guidance.stg_blocks;
  checker.check(std::set(blocks.begin(), blocks.end()).size() == blocks.size(), key + ".stg_blocks",
                "names a block twice");
  checker.check(guidance.stg == 0 || !blocks.empty(), key + ".stg_blocks",
                "is empty, so the stg pass would perturb nothing; give blocks, or set stg: 0");
}

// `latents`: size of the video in latent cells; `overlap` likewise; all as frames, rows, columns.
void check_grid(Checker& checker, const std::string& key, const std::optional<TileGrid>& grid,
                const std::array<int64_t, 3>& overlap) {
  if (!grid || !checker.is_sound("video")) return;
  const Video& video = checker.job().video;
  const std::array<int64_t, 3> latents = {(video.num_frames - 1) / kFramesPerLatent + 1,
                                          video.height / kPixelsPerLatent,
                                          video.width / kPixelsPerLatent};
  constexpr std::string_view kAxes[] = {"frames", "rows", "columns"};
  for (size_t axis = 0; axis < 3; ++axis) {
    const int64_t tiles = (*grid)[axis];
    // Tiles of equal length, each longer than the overlap: (L + (n - 1) o) / n > o.
    if (tiles > 1 && latents[axis] < overlap[axis] + tiles) {
      const int64_t most = std::max<int64_t>(1, latents[axis] - overlap[axis]);
      checker.add(key, fmt::format("{} tiles along {} do not fit {} latent cells with overlap {}; "
                                   "use at most {}, or less overlap",
                                   tiles, kAxes[axis], latents[axis], overlap[axis], most));
    }
  }
}

void check_stage_2(Checker& checker) {
  const Job& job = checker.job();
  const Stage2& stage = job.stage_2;
  check_sigmas(checker, "stage_2.sigmas", stage.sigmas);
  if (stage.parallel == Stage2Parallel::tdp && checker.is_sound("pipeline")) {
    checker.check(job.pipeline == Pipeline::ti2vid_two_stages, "stage_2.parallel",
                  "tdp belongs to pipeline: ti2vid_two_stages; expected auto, none or sp");
  }
  const DenoiseTiles& tiles = stage.tiles;
  check_grid(checker, "stage_2.tiles.grid", tiles.grid,
             {tiles.overlap, tiles.overlap, tiles.overlap});
  const bool has_reference = std::any_of(job.images.begin(), job.images.end(),
                                         [](const Image& image) { return image.frame < 0; });
  const bool has_sigma = stage.sigmas && !stage.sigmas->empty();
  if (stage.parallel == Stage2Parallel::tdp && has_sigma && !has_reference &&
      stage.sigmas->front() > tiles.max_first_sigma) {
    checker.add("stage_2.sigmas",
                fmt::format("starts at {}, above stage_2.tiles.max_first_sigma ({}): tiles would "
                            "drift apart; start lower, or add an image with a negative frame",
                            stage.sigmas->front(), tiles.max_first_sigma));
  }
}

void check_images(Checker& checker) {
  const auto& images = checker.job().images;
  const int64_t frames = checker.job().video.num_frames;
  std::optional<size_t> first;
  for (size_t i = 0; i < images.size(); ++i) {
    const std::string key = fmt::format("images[{}].frame", i);
    if (images[i].frame >= frames && checker.is_sound("video.num_frames")) {
      checker.add(key, fmt::format("{} is past the end; the clip has frames 0 to {}",
                                   images[i].frame, frames - 1));
    }
    if (images[i].frame != 0) continue;
    if (first)
      checker.add(key, fmt::format("frame 0 is taken by images[{}]; one image can start "
                                   "the clip",
                                   *first));
    first = first.value_or(i);
  }
}

void check_axis_tiling(Checker& checker, const std::string& key, const AxisTiling& axis,
                       int64_t unit) {
  if (!axis.size) {
    checker.check(axis.overlap == 0, key + ".overlap", "is given without size");
    return;
  }
  if (*axis.size % unit != 0 || *axis.size < 2 * unit) {
    const int64_t below = std::max(2 * unit, *axis.size / unit * unit);
    checker.add(key + ".size",
                fmt::format("{} is not a multiple of {} from {} on; nearest: {} or {}", *axis.size,
                            unit, 2 * unit, below, below + unit));
  }
  if (axis.overlap % unit != 0 || axis.overlap >= *axis.size) {
    const int64_t most = std::max<int64_t>(0, (*axis.size - 1) / unit * unit);
    const int64_t below = std::min(most, axis.overlap / unit * unit);
    const int64_t above = std::min(most, below + unit);
    checker.add(key + ".overlap",
                fmt::format("{} is not a multiple of {} below size ({}); nearest: {}", axis.overlap,
                            unit, *axis.size,
                            below == above ? fmt::to_string(below)
                                           : fmt::format("{} or {}", below, above)));
  }
}

// Frames of the longest of the ranks' temporal tiles, 8 a latent cell as tile sizes count them.
int64_t longest_temporal_tile(const Video& video, int64_t tiles, int64_t overlap) {
  const int64_t latents = (video.num_frames - 1) / kFramesPerLatent + 1;
  const int64_t cells = latents + overlap * (tiles - 1);
  const int64_t size = cells / tiles;
  const int64_t longer = cells % tiles;  // tiles of one cell more, the first ones
  // All but the first begin one cell earlier, since the decoder is causal.
  return std::max(size + (longer > 0 ? 1 : 0), size + 1 + (longer > 1 ? 1 : 0)) * kFramesPerLatent;
}

void check_decoder(Checker& checker) {
  const Decoder& decoder = checker.job().decoder;
  check_grid(checker, "decoder.tiles.grid", decoder.tiles.grid, decoder.tiles.overlap.cells);
  if (decoder.tiling.mode != TilingMode::manual) return;
  const auto& [mode, spatial, temporal] = decoder.tiling;
  check_axis_tiling(checker, "decoder.tiling.spatial", spatial, kPixelsPerLatent);
  check_axis_tiling(checker, "decoder.tiling.temporal", temporal, kFramesPerLatent);
  checker.check(spatial.size || temporal.size, "decoder.tiling",
                "gives no size; give spatial.size or temporal.size, or write off");
  const bool ranks_split_time = decoder.tiles.grid && decoder.tiles.grid->front() > 1;
  if (!ranks_split_time || !temporal.size || !checker.is_sound("video")) return;
  const int64_t longest = longest_temporal_tile(checker.job().video, decoder.tiles.grid->front(),
                                                decoder.tiles.overlap.cells.front());
  checker.check(*temporal.size >= longest, "decoder.tiling.temporal",
                "time is split over the ranks already (decoder.tiles.grid); only one can split it");
}

void check_devices(Checker& checker) {
  const Job& job = checker.job();
  const bool on_cpu = job.device == Device::cpu;
  checker.check(!on_cpu || job.noise_device == NoiseDevice::cpu, "noise_device",
                "cuda is impossible with device: cpu");
  checker.check(!on_cpu || job.precision != Precision::fp8_scaled_mm, "precision",
                "fp8_scaled_mm needs a GPU, and device is cpu; use fp8_cast, bf16 or fp32");
  checker.check(!on_cpu || job.attention != Attention::cudnn, "attention",
                "cudnn needs a GPU, and device is cpu; use auto, math or flash");
  checker.check(!on_cpu || job.sp.transport != Transport::nccl, "sp.transport",
                "nccl needs GPUs, and device is cpu; use auto or peer");
  checker.check(!on_cpu || job.offload != Offload::cpu, "offload",
                "the weights are on the CPU already with device: cpu; use none, or disk");
  checker.check(job.device != Device::cuda || job.attention != Attention::flash ||
                    job.precision != Precision::fp32,
                "attention", "flash on a GPU needs 16-bit numbers, and precision is fp32");
}

void check_combinations(Checker& checker) {
  const Job& job = checker.job();
  checker.check(!job.models.fixed_loras || job.pipeline == Pipeline::distilled,
                "models.fixed_loras",
                "true is impossible with pipeline: ti2vid_two_stages, whose stage 2 adds a LoRA");
  const bool has_loras = !job.models.loras.empty() || job.pipeline == Pipeline::ti2vid_two_stages;
  checker.check(job.offload != Offload::disk || !has_loras, "offload",
                "disk takes the weights as they are in their file, without LoRAs; use cpu");
  checker.check(job.text.enhance || job.text.enhancer.empty(), "text.enhancer",
                "has no effect without text.enhance: true");
  checker.check(!job.output.save_frames || !job.output.latents.empty(), "output.save_frames",
                "the frames go into the file of output.latents, which is not given");
  const bool has_checkpoint = !job.checkpoint.path.empty();
  checker.check(has_checkpoint || job.checkpoint.every_steps == 0, "checkpoint.every_steps",
                "has no effect without checkpoint.path");
  checker.check(has_checkpoint || job.checkpoint.resume == Resume::never, "checkpoint.resume",
                "needs checkpoint.path");
  checker.check(has_checkpoint || !job.limits.max_hours, "limits.max_hours",
                "needs checkpoint.path: without it a stop would lose the work");
  checker.check(has_checkpoint || job.limits.stop_file.empty(), "limits.stop_file",
                "needs checkpoint.path: without it a stop would lose the work");
  if (job.reproducible == Reproducible::world) {
    checker.check(
        job.stage_2.parallel != Stage2Parallel::tdp, "reproducible",
        "world is impossible with stage_2.parallel: tdp, whose tiles depend on the number "
        "of ranks");
    checker.check(job.stage_1.guidance_groups.value_or(1) == 1, "reproducible",
                  "world needs guidance pass by pass: stage_1.guidance_groups: 1");
  }
}

}  // namespace

void complete_job(Job& job, const Origins& origins, Problems& problems) {
  const auto& sigmas = job.stage_1.sigmas;
  if (!sigmas || sigmas->size() < 2) return;
  const auto steps = static_cast<int64_t>(sigmas->size()) - 1;
  if (job.stage_1.steps.value_or(steps) != steps) {
    problems.add(origins.place("stage_1.steps"), "stage_1.steps",
                 fmt::format("{} disagrees with stage_1.sigmas, which make {} steps; give one of "
                             "the two",
                             *job.stage_1.steps, steps));
  }
  job.stage_1.steps = steps;
}

void check_job(const Job& job, const Origins& origins, Problems& problems) {
  check_usage(job, origins, problems);
  Checker checker(job, origins, problems);
  check_models(checker);
  check_video(checker);
  check_stage_1(checker);
  check_guidance(checker, "stage_1.guidance.video", job.stage_1.guidance.video);
  check_guidance(checker, "stage_1.guidance.audio", job.stage_1.guidance.audio);
  check_images(checker);
  check_stage_2(checker);
  check_decoder(checker);
  check_devices(checker);
  check_combinations(checker);
  check_names(job, origins, problems);
}

}  // namespace flotilla::config
