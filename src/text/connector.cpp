#include "text/connector.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "ops/norm.h"
#include "text/config_sizes.h"

namespace flotilla::text {
namespace {

// The reference has this many, whatever connector_num_learnable_registers says.
constexpr int64_t kNumRegisters = 128;
constexpr int64_t kMaxLayers = 1024;
constexpr double kNormEps = 1e-6;
constexpr double kRopeTheta = 10'000.0;

int64_t read_max_position(const loader::ConfigReader& transformer) {
  const std::string key = "connector_positional_embedding_max_pos";
  const auto list = transformer.get<std::vector<int64_t>>(key, {1});
  if (list.size() != 1 || list[0] < 1) {
    transformer.fail_value(key, "must be a list of one positive number");
  }
  return list[0];
}

// Rows 0, 1, 2, ... on the one position axis.
ops::RopeTable make_row_rope(const ConnectorConfig& config, const at::Tensor& rows) {
  const ops::RopeSpec spec{.dim = config.width(),
                           .heads = config.num_heads,
                           .theta = kRopeTheta,
                           .max_pos = {config.max_position},
                           .type = config.rope_type,
                           .double_frequencies = config.double_frequencies};
  const at::Tensor positions = at::arange(rows.size(1), rows.options().dtype(at::kFloat));
  return ops::make_rope_table(positions.view({1, 1, -1}), spec, rows.scalar_type());
}

at::Tensor run_block(const ConnectorWeights::Block& block, const at::Tensor& x,
                     const ops::RopeTable& rope) {
  const at::Tensor normed = ops::rms_norm(x, kNormEps);
  ops::AttentionCall call = ops::project_qkv(block.attention, normed, normed, kNormEps);
  call.q_rope = rope;
  call.k_rope = rope;
  const at::Tensor middle =
      x + ops::project_out(block.attention, ops::attend(call), call.gate_logits);
  return middle + ops::feed_forward(block.feed_forward, ops::rms_norm(middle, kNormEps));
}

}  // namespace

ConnectorConfig ConnectorConfig::from_json(const loader::ConfigReader& transformer,
                                           ConnectorKind kind) {
  transformer.require<bool>("use_embeddings_connector", {true});
  transformer.require<bool>("connector_norm_output", {true});
  transformer.require<std::string>("rope_type", {"split", "interleaved"});
  transformer.require<std::string>("frequencies_precision", {"float64", "float32"});
  const auto size = [&](const std::string& entry, int64_t otherwise, int64_t most) {
    const std::string audio = "audio_connector_" + entry;
    const bool own = kind == ConnectorKind::audio && transformer.has(audio);
    return config_size(transformer, own ? audio : "connector_" + entry, otherwise, most);
  };
  ConnectorConfig config;
  config.num_heads = size("num_attention_heads", 30, kMaxConfigSize);
  config.head_dim = size("attention_head_dim", 128, kMaxConfigSize);
  config.num_layers = size("num_layers", 2, kMaxLayers);
  config.max_position = read_max_position(transformer);
  if (transformer.get<std::string>("rope_type", "split") == "interleaved") {
    config.rope_type = ops::RopeType::interleaved;
  }
  config.double_frequencies =
      transformer.get<std::string>("frequencies_precision", "float32") == "float64";
  config.gated = transformer.get<bool>("connector_apply_gated_attention", false);
  config.feed_forward_bias = transformer.get<bool>("connector_ff_bias", true);
  if (config.head_dim % 2 != 0) {
    fail(ErrorKind::input, fmt::format("{}: the connector's attention head size is {}; rotary "
                                       "positions need an even one",
                                       transformer.where(), config.head_dim));
  }
  return config;
}

ConnectorWeights bind_connector(const ConnectorConfig& config, loader::WeightBinder connector) {
  const ops::AttentionShape shape{.query_dim = config.width(),
                                  .context_dim = config.width(),
                                  .heads = config.num_heads,
                                  .head_dim = config.head_dim,
                                  .gated = config.gated};
  ConnectorWeights weights;
  weights.registers = connector.take("learnable_registers", {kNumRegisters, config.width()});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto block = connector.scope(fmt::format("transformer_1d_blocks.{}.", i));
    weights.blocks.push_back({ops::bind_attention(block.scope("attn1."), shape),
                              ops::bind_feed_forward(block.scope("ff."), config.width(),
                                                     /*mult=*/4, config.feed_forward_bias)});
  }
  return weights;
}

at::Tensor fill_with_registers(const at::Tensor& features, const at::Tensor& mask,
                               const at::Tensor& registers, int64_t num_rows) {
  FLOTILLA_ASSERT(features.size(0) == mask.size(0) && features.size(1) == mask.size(1));
  std::vector<at::Tensor> samples;
  for (int64_t b = 0; b < features.size(0); ++b) {
    const at::Tensor valid = mask[b].nonzero().squeeze(-1);
    FLOTILLA_ASSERT(valid.numel() <= num_rows);
    const at::Tensor places = at::arange(valid.numel(), num_rows, at::kLong) % registers.size(0);
    samples.push_back(at::cat({features[b].index_select(0, valid.to(features.device())),
                               registers.index_select(0, places.to(registers.device()))}));
  }
  return at::stack(samples);  // [B, num_rows, D]
}

at::Tensor run_connector(const ConnectorConfig& config, const ConnectorWeights& weights,
                         const at::Tensor& features, const at::Tensor& mask, int64_t num_rows) {
  at::Tensor rows = fill_with_registers(features, mask, weights.registers, num_rows);
  const ops::RopeTable rope = make_row_rope(config, rows);
  for (const auto& block : weights.blocks) rows = run_block(block, rows, rope);
  return ops::rms_norm(rows, kNormEps);
}

}  // namespace flotilla::text
