// The formulas of the forecast: bytes of weights from the tables of the files, bytes of activations
// from sizes. Widths below are tensors of [tokens, width of the stream]; how many of them are alive
// at once was counted in the code that makes them and held against measured peaks (docs/memory.md).
#pragma once

#include <cstdint>

#include "config/job.h"
#include "pipeline/forecast.h"
#include "text/gemma_config.h"
#include "transformer/config.h"

namespace flotilla::pipeline {

// What all formulas read, computed once.
struct ForecastSizes {
  const config::Job& job;
  const ModelFiles& files;
  const Plan& plan;
  const ForecastFacts& facts;
  transformer::TransformerConfig model;
  int64_t element_bytes;  // of the computation

  ForecastSizes(const config::Job& job, const ModelFiles& files, const Plan& plan,
                const ForecastFacts& facts);
  bool on_gpu() const { return plan.device.is_cuda(); }
};

// Weights, of the rank that holds most of them.
int64_t text_weight_bytes(const ForecastSizes& sizes);
int64_t enhancer_weight_bytes(const ForecastSizes& sizes);
int64_t image_encoder_weight_bytes(const ForecastSizes& sizes);
int64_t upsampler_weight_bytes(const ForecastSizes& sizes);
int64_t audio_weight_bytes(const ForecastSizes& sizes);
int64_t decoder_weight_bytes(const ForecastSizes& sizes);
// With LoRAs: the factors that a rank reads for its share, the clean rows that it keeps, and what
// fusing one layer takes.
int64_t lora_factor_bytes(const ForecastSizes& sizes);
int64_t clean_share_bytes(const ForecastSizes& sizes);
int64_t fuse_work_bytes(const ForecastSizes& sizes);

// Activations.
int64_t text_work_bytes(const ForecastSizes& sizes);
int64_t image_work_bytes(const ForecastSizes& sizes);
// Contexts, latents and the positions' table of a stage, held through all of its steps.
int64_t stage_state_bytes(const ForecastSizes& sizes, const StagePlan& stage);
int64_t stage_work_bytes(const ForecastSizes& sizes, const StagePlan& stage);
// Between two steps, where there are previews: the decode of one picture at the stage's size.
int64_t preview_work_bytes(const ForecastSizes& sizes, const StagePlan& stage);
int64_t exchange_buffer_bytes(const ForecastSizes& sizes, const StagePlan& stage);
int64_t upsample_work_bytes(const ForecastSizes& sizes);
int64_t audio_work_bytes(const ForecastSizes& sizes);
int64_t decode_work_bytes(const ForecastSizes& sizes);
// Frames of several ranks while the driver blends them; and as bytes on their way to the files.
int64_t blend_bytes(const ForecastSizes& sizes);
int64_t frame_bytes(const ForecastSizes& sizes);
// Freed memory that the C library keeps for itself behind work of this size.
int64_t kept_by_malloc(int64_t work_bytes);

// What one rank sends; a stage without exchange gives zeros.
StageExchange stage_exchange(const ForecastSizes& sizes, const StagePlan& stage);

}  // namespace flotilla::pipeline
