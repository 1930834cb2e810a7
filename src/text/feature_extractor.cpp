#include "text/feature_extractor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "ops/norm.h"
#include "text/config_sizes.h"

namespace flotilla::text {
namespace {

constexpr double kEps = 1e-6;
constexpr double kRangeScale = 8.0;  // V1 maps a layer's range to this

// The entries that tell LTX-2.3, with the one combination of values that is implemented.
constexpr std::pair<const char*, bool> kV2Entries[] = {
    {"caption_proj_before_connector", true},
    {"caption_projection_first_linear", false},
    {"caption_proj_input_norm", false},
    {"caption_projection_second_linear", false},
};

bool is_v2(const loader::ConfigReader& transformer) {
  size_t present = 0;
  for (const auto& [key, value] : kV2Entries) present += transformer.has(key) ? 1 : 0;
  if (present == 0) return false;
  for (const auto& [key, value] : kV2Entries) {
    if (!transformer.has(key)) {
      fail(ErrorKind::input,
           fmt::format("{}: \"{}\" is missing beside the other entries of the LTX-2.3 caption "
                       "projection",
                       transformer.where(), key));
    }
    transformer.require<bool>(key, {value});
  }
  return true;
}

// x: float [B, T, D]; mask: bool [B, T, 1] on the same device.
at::Tensor normalize_by_range(const at::Tensor& x, const at::Tensor& mask) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor padding = mask.logical_not();
  const at::Tensor count = mask.sum({1, 2}, /*keepdim=*/true) * x.size(-1);  // [B, 1, 1]
  const at::Tensor mean = x.masked_fill(padding, 0.0).sum({1, 2}, true) / (count + kEps);
  const at::Tensor low = x.masked_fill(padding, kInfinity).amin({1, 2}, true);
  const at::Tensor high = x.masked_fill(padding, -kInfinity).amax({1, 2}, true);
  return kRangeScale * (x - mean) / (high - low + kEps);
}

// linear(scale * x); the scale rides on the matrix product, so no scaled copy of x is made.
at::Tensor scaled_linear(const loader::Linear& linear, const at::Tensor& x, double scale) {
  const at::Tensor rows =
      at::addmm(linear.bias, x.flatten(0, -2), linear.weight.t(), /*beta=*/1.0, /*alpha=*/scale);
  return rows.view({x.size(0), x.size(1), -1});
}

}  // namespace

FeatureExtractorConfig FeatureExtractorConfig::from_json(const loader::ConfigReader& transformer,
                                                         const GemmaConfig& gemma) {
  FeatureExtractorConfig config;
  config.hidden_size = gemma.hidden_size;
  config.num_states = gemma.num_states();
  if (!is_v2(transformer)) {
    config.video_width = config.audio_width = gemma.hidden_size;
    return config;
  }
  config.version = FeatureVersion::v2;
  transformer.require<std::string>("text_encoder_norm_type", {"per_token_rms"});
  config.video_width = config_size(transformer, "num_attention_heads") *
                       config_size(transformer, "attention_head_dim");
  config.audio_width = config_size(transformer, "audio_num_attention_heads") *
                       config_size(transformer, "audio_attention_head_dim");
  return config;
}

FeatureExtractorWeights bind_feature_extractor(const FeatureExtractorConfig& config,
                                               loader::WeightBinder projection) {
  const int64_t in = config.input_width();
  FeatureExtractorWeights weights;
  if (config.version == FeatureVersion::v1) {
    weights.video = weights.audio =
        take_linear(projection, "aggregate_embed", in, config.video_width, /*bias=*/false);
  } else {
    weights.video = take_linear(projection, "video_aggregate_embed", in, config.video_width);
    weights.audio = take_linear(projection, "audio_aggregate_embed", in, config.audio_width);
  }
  return weights;
}

void FeatureExtractorWeights::prepare(const FeatureExtractorConfig& config) {
  constexpr int64_t kRowsAtOnce = 64;  // what is held twice meanwhile
  const auto lay_out = [&](at::Tensor weight) {
    for (int64_t row = 0; row < weight.size(0); row += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, weight.size(0) - row);
      const at::Tensor part = weight.narrow(0, row, count);  // [rows, D * L]
      part.copy_(part.view({count, config.hidden_size, config.num_states})
                     .transpose(1, 2)
                     .reshape({count, -1}));
    }
  };
  lay_out(video.weight);
  if (!audio.weight.is_same(video.weight)) lay_out(audio.weight);
}

FeatureRows::FeatureRows(const FeatureExtractorConfig& config, at::Tensor mask,
                         const at::TensorOptions& options)
    : config_(config),
      mask_(std::move(mask)),
      mask_on_device_(mask_.to(options.device()).unsqueeze(-1)),
      rows_(at::empty({mask_.size(0), mask_.size(1), config.num_states, config.hidden_size},
                      options)) {}

void FeatureRows::add(int64_t index, const at::Tensor& state) {
  rows_.select(2, index).copy_(config_.version == FeatureVersion::v1
                                   ? normalize_by_range(state.to(at::kFloat), mask_on_device_)
                                   : ops::rms_norm(state, kEps));
  ++num_added_;
}

TextFeatures FeatureRows::project(const FeatureExtractorWeights& weights) const {
  FLOTILLA_ASSERT(num_added_ == config_.num_states);
  const at::Tensor flat = rows_.flatten(-2);  // [B, T, L * D]
  TextFeatures features;
  features.mask = mask_;
  if (config_.version == FeatureVersion::v1) {
    features.video = features.audio = at::linear(flat, weights.video.weight);
    return features;
  }
  const auto scale = [&](int64_t width) {
    return std::sqrt(static_cast<double>(width) / static_cast<double>(config_.hidden_size));
  };
  features.video = scaled_linear(weights.video, flat, scale(config_.video_width));
  features.audio = scaled_linear(weights.audio, flat, scale(config_.audio_width));
  return features;
}

TextFeatures extract_features(const FeatureExtractorConfig& config,
                              const FeatureExtractorWeights& weights, const GemmaStates& gemma) {
  FeatureRows rows(config, gemma.mask, gemma.states.front().options());
  for (size_t i = 0; i < gemma.states.size(); ++i) {
    rows.add(static_cast<int64_t>(i), gemma.states[i]);
  }
  return rows.project(weights);
}

}  // namespace flotilla::text
