#include "text/gemma.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "text/gemma_folder.h"

namespace flotilla::text {
namespace fs = std::filesystem;
namespace {

// The layouts of released folders: transformers 4 and 5.
constexpr const char* kModelPrefixes[] = {"language_model.model.", "model.language_model."};

// Parts of the folder that a prompt does not need: the image branch, and the copy of the embedding
// that some exports store as the output layer.
const std::vector<std::string>& unused_parts() {
  static const std::vector<std::string> parts = {
      "vision_tower.",       "multi_modal_projector.",       "language_model.lm_head.",
      "model.vision_tower.", "model.multi_modal_projector.", "lm_head."};
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

at::Tensor embed(const GemmaWeights& weights, const at::Tensor& ids) {
  const at::Tensor& table = weights.embed_tokens;
  const at::Tensor rows = at::embedding(table, ids.to(table.device()));  // [B, T, D]
  // The scale is rounded to the model's dtype first, as it was in training.
  const double scale = std::sqrt(static_cast<double>(table.size(1)));
  return rows * at::full({}, scale, table.options());
}

}  // namespace

GemmaWeights bind_gemma(const GemmaConfig& config, loader::WeightBinder model) {
  GemmaWeights weights;
  weights.embed_tokens = model.take("embed_tokens.weight", {config.vocab_size, config.hidden_size});
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    weights.layers.push_back(bind_gemma_layer(config, model.scope(fmt::format("layers.{}.", i))));
  }
  weights.norm = model.take("norm.weight", {config.hidden_size});
  return weights;
}

GemmaStates gemma_forward(const GemmaConfig& config, const GemmaWeights& weights,
                          const at::Tensor& ids, const at::Tensor& mask) {
  FLOTILLA_ASSERT(ids.dim() == 2 && ids.sizes() == mask.sizes());
  const int64_t first = leading_padding(mask.ne(0));
  const int64_t count = ids.size(1) - first;
  GemmaStates result;
  result.mask = mask.narrow(1, first, count).ne(0);

  at::Tensor hidden = embed(weights, ids.narrow(1, first, count));  // [B, T, D]
  const auto make_view = [&](AttentionSpan span, const GemmaRope& rope) {
    const at::Tensor sees = make_mask(config, span, result.mask);
    return GemmaView{make_gemma_rotation(rope, config.head_dim, first, count, hidden.options()),
                     sees.defined() ? sees.to(hidden.device()) : sees};
  };
  const GemmaView full = make_view(AttentionSpan::full, config.full_rope);
  const GemmaView sliding = make_view(AttentionSpan::sliding, config.sliding_rope);

  result.states.push_back(hidden);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const GemmaView& view = config.layers[i] == AttentionSpan::full ? full : sliding;
    hidden = gemma_layer(config, weights.layers[i], hidden, view);
    result.states.push_back(hidden);
  }
  result.states.back() = gemma_rms_norm(hidden, weights.norm, config.rms_norm_eps);
  return result;
}

Gemma::Gemma(const fs::path& folder, at::ScalarType dtype, at::Device device) {
  check_gemma_folder(folder);
  const nlohmann::json json = read_gemma_json(folder);
  config_ = GemmaConfig::from_json(loader::ConfigReader(json, (folder / "config.json").string()));
  const auto checkpoint = loader::Checkpoint::open(folder);
  const std::string prefix = model_prefix(*checkpoint);
  arena_ = std::make_unique<loader::WeightArena>(checkpoint, std::vector<std::string>{""}, dtype,
                                                 device, unused_parts());
  loader::WeightBinder binder(*arena_);
  weights_ = bind_gemma(config_, binder.scope(prefix));
  binder.finish();
}

GemmaStates Gemma::forward(const at::Tensor& ids, const at::Tensor& mask) const {
  FLOTILLA_ASSERT(arena_->loaded());
  return gemma_forward(config_, weights_, ids, mask);
}

}  // namespace flotilla::text
