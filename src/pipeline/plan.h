// What a job comes to before any work: sizes, tokens, schedules, tiles. Derived from the job and
// the headers of the files alone, so every rank, and a dry run, derives the same plan.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "config/job.h"
#include "diffusion/latent_size.h"
#include "diffusion/positions.h"
#include "diffusion/schedule.h"
#include "io/frame_sink.h"
#include "parallel/decode_plan.h"
#include "parallel/tile_grid.h"
#include "pipeline/guidance_plan.h"
#include "pipeline/model_files.h"
#include "pipeline/rank_devices.h"
#include "transformer/block_feed.h"

namespace flotilla::pipeline {

enum class StageParallel {
  none,      // every rank computes the stage alike
  sequence,  // SP
  tiles,     // TDP
};

struct StagePlan {
  std::string name;  // "stage_1": also the name in logs, metrics and files
  diffusion::VideoPixelSize pixels;
  diffusion::VideoGrid grid;
  diffusion::Sigmas sigmas;
  GuidancePlan guidance;
  StageParallel method = StageParallel::none;
  int64_t groups = 1;                       // of ranks, over which the passes of a step are dealt
  std::optional<parallel::TileGrid> tiles;  // with StageParallel::tiles

  int64_t num_steps() const { return static_cast<int64_t>(sigmas.size()) - 1; }
};

struct Plan {
  int64_t world_size = 1;
  at::Device device = at::kCPU;  // this rank's; all else is alike on all ranks
  std::vector<int> gpus;         // see RankDevices
  int64_t memory_bytes = 0;      // of a rank's device
  at::ScalarType dtype = at::kFloat;
  std::string precision;     // of the job, resolved
  int64_t weight_bytes = 0;  // of the transformer, in the memory of every rank
  transformer::WeightHome weight_home = transformer::WeightHome::device;
  transformer::HeldWeights held_weights;  // the memory that they take
  // Where a rank keeps the clean rows of its share, once LoRAs are fused: true: on its GPU.
  bool clean_on_device = false;
  std::string text;  // how prompts are encoded, in words; "" on one rank alone
  StagePlan stage_1;
  StagePlan stage_2;
  diffusion::AudioLatentSize audio;
  diffusion::AudioTiming audio_timing;
  parallel::DecodePlan decode;
  io::VideoFormat format;
  std::vector<std::string> warnings;  // for the log, once

  // Padded tokens over all tokens of the sequence-parallel stages, 0 to 1.
  double padding_fraction() const;
  // A line for the weights, the sizes of each stage, its passes and the decode; for the log and the
  // dry run.
  std::vector<std::string> describe() const;
};

// `job` is resolved (no `auto` in device and precision) and has its model's defaults. Errors
// (ErrorKind::config): sizes or tiles that the models cannot make. `devices`: by default the CPU,
// or the first GPU on every rank.
Plan make_plan(const config::Job& job, const ModelFiles& files, int64_t world_size = 1,
               const std::optional<RankDevices>& devices = std::nullopt);

// Tokens of the text of which the ranks of SP share out the projections; 0: each makes them all.
int64_t shared_text_tokens(const config::Job& job);

}  // namespace flotilla::pipeline
