#include "text/gemma_config.h"

#include <optional>

#include "text/config_sizes.h"

namespace flotilla::text {
namespace {

using loader::ConfigReader;

constexpr int64_t kMaxLayers = 1024;

double positive(const ConfigReader& config, const std::string& key, double otherwise) {
  const auto value = config.get<double>(key, otherwise);
  if (!(value > 0.0)) config.fail_value(key, "must be positive");
  return value;
}

void refuse_value(const ConfigReader& config, const std::string& key) {
  if (config.has(key)) config.fail_value(key, "is not implemented; implemented: null");
}

void check_implemented(const ConfigReader& config, const ConfigReader& text) {
  refuse_value(config, "quantization_config");
  text.require<std::string>("model_type", {"gemma3_text"});
  text.require<std::string>("hidden_activation", {"gelu_pytorch_tanh"});
  for (const char* key : {"attention_bias", "use_bidirectional_attention"}) {
    text.require<bool>(key, {false});
  }
  text.require<bool>("tie_word_embeddings", {true});
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    refuse_value(text, key);
  }
}

// `settings`: the entries of one kind of layer, or the older "rope_scaling".
double rope_factor(const ConfigReader& settings) {
  const std::string type_key = settings.has("rope_type") ? "rope_type" : "type";
  settings.require<std::string>(type_key, {"default", "linear"});
  if (settings.get<std::string>(type_key, "default") == "default") return 1.0;
  const auto factor = settings.get<double>("factor");
  if (!(factor > 0.0)) settings.fail_value("factor", "must be positive");
  return factor;
}

GemmaRope read_rope(const ConfigReader& text, AttentionSpan span) {
  const bool full = span == AttentionSpan::full;
  GemmaRope rope{.theta = full ? 1'000'000.0 : 10'000.0};
  if (text.has("rope_parameters")) {  // transformers 5
    const ConfigReader all = text.object("rope_parameters");
    const std::string kind = full ? "full_attention" : "sliding_attention";
    if (!all.has(kind)) return rope;
    const ConfigReader settings = all.object(kind);
    rope.theta = positive(settings, "rope_theta", rope.theta);
    rope.factor = rope_factor(settings);
    return rope;
  }
  rope.theta = positive(text, full ? "rope_theta" : "rope_local_base_freq", rope.theta);
  if (full && text.has("rope_scaling")) rope.factor = rope_factor(text.object("rope_scaling"));
  return rope;
}

std::vector<AttentionSpan> read_layers(const ConfigReader& text) {
  const int64_t num_layers = config_size(text, "num_hidden_layers", std::nullopt, kMaxLayers);
  std::vector<AttentionSpan> layers;
  if (!text.has("layer_types")) {
    const int64_t pattern = config_size(text, "sliding_window_pattern", 6);
    for (int64_t i = 1; i <= num_layers; ++i) {
      layers.push_back(i % pattern == 0 ? AttentionSpan::full : AttentionSpan::sliding);
    }
    return layers;
  }
  for (const auto& name : text.get<std::vector<std::string>>("layer_types")) {
    if (name != "full_attention" && name != "sliding_attention") {
      text.fail_value("layer_types", fmt::format("holds \"{}\", which is not implemented; "
                                                 "implemented: full_attention, sliding_attention",
                                                 excerpt(name)));
    }
    layers.push_back(name == "full_attention" ? AttentionSpan::full : AttentionSpan::sliding);
  }
  if (static_cast<int64_t>(layers.size()) != num_layers) {
    text.fail_value("layer_types", fmt::format("has {} entries, but num_hidden_layers is {}",
                                               layers.size(), num_layers));
  }
  return layers;
}

}  // namespace

GemmaConfig GemmaConfig::from_json(const ConfigReader& config) {
  const auto type = config.get<std::string>("model_type");
  if (type != "gemma3") {
    config.fail_value("model_type", "is not implemented; the text encoder of LTX-2 is \"gemma3\"");
  }
  const ConfigReader text = config.object("text_config");
  check_implemented(config, text);

  GemmaConfig result;
  result.vocab_size = config_size(text, "vocab_size", 262'208);
  result.hidden_size = config_size(text, "hidden_size", std::nullopt);
  result.intermediate_size = config_size(text, "intermediate_size", std::nullopt);
  result.num_heads = config_size(text, "num_attention_heads", 8);
  result.num_kv_heads = config_size(text, "num_key_value_heads", 4);
  result.head_dim = config_size(text, "head_dim", 256);
  result.sliding_window = config_size(text, "sliding_window", 4096);
  result.query_pre_attn_scalar = positive(text, "query_pre_attn_scalar", 256.0);
  result.rms_norm_eps = positive(text, "rms_norm_eps", 1e-6);
  result.full_rope = read_rope(text, AttentionSpan::full);
  result.sliding_rope = read_rope(text, AttentionSpan::sliding);
  result.layers = read_layers(text);
  if (result.num_heads % result.num_kv_heads != 0) {
    text.fail_value("num_key_value_heads",
                    fmt::format("must divide num_attention_heads ({})", result.num_heads));
  }
  if (result.head_dim % 2 != 0) text.fail_value("head_dim", "must be even");
  return result;
}

}  // namespace flotilla::text
