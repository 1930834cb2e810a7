#include "text/gemma.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "ops/gemma_layer.h"
#include "text/gemma_folder.h"

namespace flotilla::text {
namespace fs = std::filesystem;
namespace {

// The layouts of released folders: transformers 4 and 5.
constexpr const char* kModelPrefixes[] = {"language_model.model.", "model.language_model."};

// Names that are not held. Parts of the folder that text does not need: the image branch, and the
// copy of the embedding that some exports store as the output layer. Then the layers outside of
// `range` with what belongs to them. `prefix`: of the language model.
std::vector<std::string> parts_left_out(const GemmaConfig& config, const std::string& prefix,
                                        const LayerRange& range) {
  std::vector<std::string> parts = {
      "vision_tower.",       "multi_modal_projector.",       "language_model.lm_head.",
      "model.vision_tower.", "model.multi_modal_projector.", "lm_head."};
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    if (!range.contains(i)) parts.push_back(fmt::format("{}layers.{}.", prefix, i));
  }
  if (!range.contains(0)) parts.push_back(prefix + "embed_tokens.");
  if (!range.contains(config.num_layers() - 1)) parts.push_back(prefix + "norm.");
  return parts;
}

std::string model_prefix(const loader::Checkpoint& checkpoint) {
  for (const char* prefix : kModelPrefixes) {
    if (checkpoint.has_prefix(prefix)) return prefix;
  }
  fail(ErrorKind::input,
       fmt::format("\"{}\" holds no Gemma 3 language model: no tensor starts with \"{}\" or \"{}\"",
                   checkpoint.path().string(), kModelPrefixes[0], kModelPrefixes[1]));
}

// First column that is a token in any row.
int64_t leading_padding(const at::Tensor& tokens) {
  const at::Tensor columns = tokens.any(0).nonzero();
  FLOTILLA_ASSERT(columns.numel() > 0);
  return columns[0].item<int64_t>();
}

// What a query sees in a layer of this span; undefined where plain causal attention says it.
// tokens: bool [B, T] on the CPU.
at::Tensor make_mask(const GemmaConfig& config, AttentionSpan span, const at::Tensor& tokens) {
  const int64_t count = tokens.size(1);
  const bool windowed = span == AttentionSpan::sliding && count > config.sliding_window;
  const bool padded = !tokens.all().item<bool>();
  if (!windowed && !padded) return {};
  const at::Tensor index = at::arange(count, at::kLong);
  const at::Tensor distance = index.unsqueeze(1) - index;  // [query, key]
  at::Tensor sees = distance.ge(0);
  if (windowed) sees = sees.logical_and(distance.lt(config.sliding_window));
  sees = sees.logical_and(tokens.unsqueeze(1));  // [B, T, T]
  // Padding sees itself: a softmax over nothing would spread NaN.
  return sees.logical_or(distance.eq(0)).unsqueeze(1);  // [B, 1, T, T]
}

// The views of both kinds of layers.
struct Views {
  GemmaView full, sliding;

  Views(const GemmaConfig& config, const GemmaTokens& tokens, const at::TensorOptions& options)
      : full(make(config, AttentionSpan::full, tokens, options)),
        sliding(make(config, AttentionSpan::sliding, tokens, options)) {}
  const GemmaView& of(AttentionSpan span) const {
    return span == AttentionSpan::full ? full : sliding;
  }

 private:
  static GemmaView make(const GemmaConfig& config, AttentionSpan span, const GemmaTokens& tokens,
                        const at::TensorOptions& options) {
    const at::Tensor sees = make_mask(config, span, tokens.mask);
    return {make_gemma_rotation(config.rope(span), config.head_dim, tokens.first,
                                tokens.ids.size(1), options),
            sees.defined() ? sees.to(options.device()) : sees};
  }
};

}  // namespace

GemmaWeights bind_gemma(const GemmaConfig& config, loader::WeightBinder model,
                        const LayerRange& range) {
  GemmaWeights weights;
  if (range.contains(0)) {
    weights.embed_tokens =
        model.take("embed_tokens.weight", {config.vocab_size, config.hidden_size});
  }
  weights.layers.resize(config.layers.size());
  for (int64_t i = range.begin; i < range.end; ++i) {
    weights.layers[static_cast<size_t>(i)] =
        bind_gemma_layer(config, model.scope(fmt::format("layers.{}.", i)));
  }
  if (range.contains(config.num_layers() - 1)) {
    weights.norm = model.take("norm.weight", {config.hidden_size});
  }
  return weights;
}

GemmaTokens trim_padding(const at::Tensor& ids, const at::Tensor& mask) {
  FLOTILLA_ASSERT(ids.dim() == 2 && ids.sizes() == mask.sizes());
  const int64_t first = leading_padding(mask.ne(0));
  const int64_t count = ids.size(1) - first;
  return {ids.narrow(1, first, count), mask.narrow(1, first, count).ne(0), first};
}

at::Tensor gemma_embed(const GemmaWeights& weights, const at::Tensor& ids) {
  const at::Tensor& table = weights.embed_tokens;
  FLOTILLA_ASSERT(table.defined());
  const at::Tensor rows = at::embedding(table, ids.to(table.device()));  // [B, T, D]
  // The scale is rounded to the model's dtype first, as it was in training.
  const double scale = std::sqrt(static_cast<double>(table.size(1)));
  return rows * at::full({}, scale, table.options());
}

GemmaHidden begin_gemma_layers(const GemmaConfig& config, const GemmaWeights& weights,
                               int64_t first, const at::Tensor& state) {
  const GemmaLayerWeights& layer = weights.layers.at(static_cast<size_t>(first));
  return {state, ops::gemma_rms_norm(state, layer.input_norm, config.rms_norm_eps)};
}

const at::Tensor& norm_behind(const GemmaWeights& weights, int64_t layer) {
  const auto next = static_cast<size_t>(layer) + 1;
  return next < weights.layers.size() ? weights.layers[next].input_norm : weights.norm;
}

at::Tensor gemma_layers(const GemmaConfig& config, const GemmaWeights& weights,
                        const GemmaTokens& tokens, const LayerRange& range, at::Tensor state,
                        const StateVisitor& visit) {
  if (range.size() == 0) return state;
  const Views views(config, tokens, state.options());
  GemmaHidden hidden = begin_gemma_layers(config, weights, range.begin, state);
  for (int64_t i = range.begin; i < range.end; ++i) {
    const auto layer = static_cast<size_t>(i);
    FLOTILLA_ASSERT(weights.layers.at(layer).q_proj.defined());
    hidden = gemma_layer(config, weights.layers[layer], hidden, norm_behind(weights, i),
                         views.of(config.layers.at(layer)));
    if (i + 1 == config.num_layers()) hidden.state = hidden.normed;
    visit(i + 1, hidden.state);
  }
  return hidden.state;
}

GemmaStates gemma_forward(const GemmaConfig& config, const GemmaWeights& weights,
                          const at::Tensor& ids, const at::Tensor& mask) {
  const GemmaTokens tokens = trim_padding(ids, mask);
  GemmaStates result;
  result.mask = tokens.mask;
  result.states.push_back(gemma_embed(weights, tokens.ids));
  gemma_layers(config, weights, tokens, {0, config.num_layers()}, result.states[0],
               [&](int64_t, const at::Tensor& state) { result.states.push_back(state); });
  return result;
}

Gemma::Gemma(const fs::path& folder, at::ScalarType dtype, at::Device device,
             std::optional<LayerRange> range, std::shared_ptr<const loader::Checkpoint> weights) {
  check_gemma_folder(folder);
  const nlohmann::json json = read_gemma_json(folder);
  config_ = GemmaConfig::from_json(loader::ConfigReader(json, (folder / "config.json").string()));
  const LayerRange held = range.value_or(LayerRange{0, config_.num_layers()});
  FLOTILLA_ASSERT(0 <= held.begin && held.begin <= held.end && held.end <= config_.num_layers());
  if (!weights) weights = loader::Checkpoint::open(folder);
  const std::string prefix = model_prefix(*weights);
  arena_ =
      std::make_unique<loader::WeightArena>(std::move(weights), std::vector<std::string>{""}, dtype,
                                            device, parts_left_out(config_, prefix, held));
  loader::WeightBinder binder(*arena_);
  weights_ = bind_gemma(config_, binder.scope(prefix), held);
  binder.finish();
}

GemmaStates Gemma::forward(const at::Tensor& ids, const at::Tensor& mask) const {
  FLOTILLA_ASSERT(arena_->loaded());
  return gemma_forward(config_, weights_, ids, mask);
}

at::Tensor Gemma::embed(const at::Tensor& ids) const {
  FLOTILLA_ASSERT(arena_->loaded());
  return gemma_embed(weights_, ids);
}

at::Tensor Gemma::run_layers(const GemmaTokens& tokens, const LayerRange& range, at::Tensor hidden,
                             const StateVisitor& visit) const {
  FLOTILLA_ASSERT(arena_->loaded());
  return gemma_layers(config_, weights_, tokens, range, std::move(hidden), visit);
}

}  // namespace flotilla::text
