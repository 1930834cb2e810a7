#include "text/gemma_decoder.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace flotilla::text {
namespace {

// What tokens from `first` on see of each other and of the window before them: the prompt alone
// needs a mask, a lone token sees all that its cache shows.
GemmaView make_view(const GemmaConfig& config, AttentionSpan span, int64_t first, int64_t count,
                    const at::TensorOptions& options) {
  GemmaView view;
  view.rotation = make_gemma_rotation(config.rope(span), config.head_dim, first, count, options);
  if (span == AttentionSpan::full || count <= config.sliding_window) return view;
  const at::Tensor index = at::arange(count, options.dtype(at::kLong));
  const at::Tensor distance = index.unsqueeze(1) - index;  // [query, key]
  view.mask = distance.ge(0).logical_and(distance.lt(config.sliding_window));
  return view;
}

}  // namespace

GemmaDecoder::GemmaDecoder(const Gemma& gemma, int64_t capacity) : gemma_(gemma) {
  const at::TensorOptions options = gemma.weights().embed_tokens.options();
  for (const AttentionSpan span : gemma.config().layers) {
    caches_.emplace_back(gemma.config(), span, capacity, options);
  }
}

at::Tensor GemmaDecoder::next(const std::vector<int64_t>& ids) {
  const GemmaConfig& config = gemma_.config();
  const GemmaWeights& weights = gemma_.weights();
  const auto count = static_cast<int64_t>(ids.size());
  const at::Tensor embedded = gemma_.embed(at::tensor(ids, at::kLong).unsqueeze(0));  // [1, n, D]
  GemmaHidden hidden = begin_gemma_layers(config, weights, 0, embedded);
  const auto options = embedded.options();
  const GemmaView full = make_view(config, AttentionSpan::full, length_, count, options);
  const GemmaView sliding = make_view(config, AttentionSpan::sliding, length_, count, options);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const GemmaView& view = config.layers[i] == AttentionSpan::full ? full : sliding;
    hidden = gemma_layer(config, weights.layers[i], hidden,
                         norm_behind(weights, static_cast<int64_t>(i)), view, &caches_[i]);
  }
  length_ += count;
  const at::Tensor last = hidden.normed.select(1, count - 1);                 // [1, D]
  return at::linear(last, weights.embed_tokens)[0].to(at::kCPU, at::kFloat);  // [vocab]
}

std::vector<int64_t> generate(const Gemma& gemma, const GenerationRequest& request,
                              TokenSampler& sampler) {
  FLOTILLA_ASSERT(!request.prompt.empty() && request.max_tokens > 0);
  GemmaDecoder decoder(gemma, static_cast<int64_t>(request.prompt.size()) + request.max_tokens);
  std::vector<int64_t> made;
  at::Tensor scores = decoder.next(request.prompt);
  while (true) {
    made.push_back(sampler.pick(scores.narrow(0, 0, request.num_pieces)));
    const bool is_full = static_cast<int64_t>(made.size()) == request.max_tokens;
    if (is_full || request.is_done(made)) return made;
    scores = decoder.next({made.back()});
  }
}

}  // namespace flotilla::text
