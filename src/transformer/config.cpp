#include "transformer/config.h"

#include <algorithm>

namespace flotilla::transformer {
namespace {

// Flags of the reference's configuration for which this program, like the reference, has one value.
void check_fixed_flags(const loader::ConfigReader& reader) {
  reader.require<double>("dropout", {0.0});
  reader.require<bool>("attention_bias", {true});
  reader.require<std::string>("activation_fn", {"gelu-approximate"});
  reader.require<int64_t>("num_embeds_ada_norm", {1000});
  reader.require<bool>("use_linear_projection", {false});
  reader.require<bool>("only_cross_attention", {false});
  reader.require<bool>("cross_attention_norm", {true});
  reader.require<bool>("double_self_attention", {false});
  reader.require<bool>("upcast_attention", {false});
  reader.require<std::string>("standardization_norm", {"rms_norm"});
  reader.require<bool>("norm_elementwise_affine", {false});
  reader.require<std::string>("qk_norm", {"rms_norm"});
  reader.require<std::string>("positional_embedding_type", {"rope"});
  reader.require<bool>("use_audio_video_cross_attention", {true});
  reader.require<bool>("share_ff", {false});
  reader.require<bool>("av_cross_ada_norm", {true});
  reader.require<bool>("use_middle_indices_grid", {true});
  if (reader.has("num_vector_embeds"))
    reader.fail_value("num_vector_embeds", "is not implemented; implemented: null");
}

std::vector<int64_t> positions_of(const loader::ConfigReader& reader, const std::string& key,
                                  std::vector<int64_t> otherwise) {
  const size_t axes = otherwise.size();
  auto max_pos = reader.get<std::vector<int64_t>>(key, std::move(otherwise));
  const bool positive =
      std::all_of(max_pos.begin(), max_pos.end(), [](int64_t p) { return p > 0; });
  if (max_pos.size() != axes || !positive) {
    reader.fail_value(key, fmt::format("must be a list of {} positive numbers", axes));
  }
  return max_pos;
}

int64_t positive_of(const loader::ConfigReader& reader, const std::string& key, int64_t otherwise) {
  const auto value = reader.get<int64_t>(key, otherwise);
  constexpr int64_t kMost = int64_t{1} << 20;  // far above any real model
  if (value < 1 || value > kMost) reader.fail_value(key, fmt::format("must be 1 to {}", kMost));
  return value;
}

StreamConfig read_stream(const loader::ConfigReader& reader, const std::string& prefix,
                         StreamConfig stream) {
  stream.in_channels = positive_of(reader, prefix + "in_channels", stream.in_channels);
  stream.out_channels = positive_of(reader, prefix + "out_channels", stream.out_channels);
  stream.heads = positive_of(reader, prefix + "num_attention_heads", stream.heads);
  stream.head_dim = positive_of(reader, prefix + "attention_head_dim", stream.head_dim);
  stream.context_dim = positive_of(reader, prefix + "cross_attention_dim", stream.context_dim);
  stream.max_pos = positions_of(reader, prefix + "positional_embedding_max_pos", stream.max_pos);
  stream.ff_bias = reader.get<bool>(prefix + "ff_bias", true);
  return stream;
}

}  // namespace

TransformerConfig TransformerConfig::from_json(const loader::ConfigReader& reader) {
  check_fixed_flags(reader);
  TransformerConfig config;
  config.num_layers = positive_of(reader, "num_layers", config.num_layers);
  config.video = read_stream(reader, "", {.max_pos = {20, 2048, 2048}});
  config.audio =
      read_stream(reader, "audio_", {.head_dim = 64, .context_dim = 2048, .max_pos = {20}});
  if (config.video.heads != config.audio.heads) {
    reader.fail_value("audio_num_attention_heads",
                      fmt::format("must equal num_attention_heads ({})", config.video.heads));
  }
  config.norm_eps = reader.get<double>("norm_eps", config.norm_eps);
  config.rope_theta = reader.get<double>("positional_embedding_theta", config.rope_theta);
  reader.require<std::string>("rope_type", {"split", "interleaved"});
  config.rope_type = reader.get<std::string>("rope_type", "split") == "split"
                         ? ops::RopeType::split
                         : ops::RopeType::interleaved;
  reader.require<std::string>("frequencies_precision", {"float32", "float64"});
  config.double_frequencies =
      reader.get<std::string>("frequencies_precision", "float32") == "float64";
  config.timestep_scale = reader.get<double>("timestep_scale_multiplier", config.timestep_scale);
  config.cross_timestep_scale =
      reader.get<double>("av_ca_timestep_scale_multiplier", config.cross_timestep_scale);
  config.gated_attention = reader.get<bool>("apply_gated_attention", false);
  config.cross_attention_adaln = reader.get<bool>("cross_attention_adaln", false);
  config.prompt_adaln = reader.get<bool>("use_prompt_adaln_single", true);
  config.caption_projection = !reader.get<bool>("caption_proj_before_connector", false);
  if (config.caption_projection)
    config.caption_channels = positive_of(reader, "caption_channels", 3840);
  config.keyframe_embedding = reader.get<bool>("use_keyframes_abs_pos_embedding", false);
  return config;
}

TransformerConfig TransformerConfig::from_checkpoint(const loader::Checkpoint& checkpoint) {
  const loader::ConfigReader reader(checkpoint.config(), checkpoint.path().string() + ": config");
  return from_json(reader.object("transformer"));
}

ops::RopeSpec TransformerConfig::video_rope() const {
  return {video.dim(), video.heads, rope_theta, video.max_pos, rope_type, double_frequencies};
}

ops::RopeSpec TransformerConfig::audio_rope() const {
  return {audio.dim(), audio.heads, rope_theta, audio.max_pos, rope_type, double_frequencies};
}

ops::RopeSpec TransformerConfig::cross_rope() const {
  return {audio.context_dim, audio.heads,
          rope_theta,        {std::max(video.max_pos[0], audio.max_pos[0])},
          rope_type,         double_frequencies};
}

}  // namespace flotilla::transformer
