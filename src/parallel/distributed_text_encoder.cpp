#include "parallel/distributed_text_encoder.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/error.h"
#include "comm/agreement.h"
#include "parallel/shared_weights.h"

namespace flotilla::parallel {
namespace {

constexpr int kStateTag = 0;

// `load` reads an arena that the ranks with `takes_part` hold alike; they read it together, and all
// ranks learn how that went. Collective over `ranks`.
template <typename Load>
void load_together(comm::Communicator& ranks, bool takes_part, const Load& load) {
  const auto group = ranks.split(takes_part ? 0 : 1 + ranks.rank());
  const auto load_share = [&] {
    if (!takes_part) return;
    try {
      load([&](loader::WeightArena& arena) { load_shared(arena, *group); });
    } catch (const comm::AgreedError& error) {
      // Agreed in the group alone: here it is this rank's own error, which the others wait for.
      throw Error(error.kind(), error.what());
    }
  };
  try {
    comm::agreed(ranks, load_share);
  } catch (const comm::AgreedError&) {
    group->close();
    throw;
  }
  group->close();
}

text::LayerRange all_layers(const text::Gemma& gemma) { return {0, gemma.config().num_layers()}; }

}  // namespace

text::LayerRange layers_of_rank(int64_t num_layers, int rank, int world_size) {
  return {num_layers * rank / world_size, num_layers * (rank + 1) / world_size};
}

DistributedTextEncoder::DistributedTextEncoder(comm::Communicator* ranks,
                                               const TextEncoderSetup& setup)
    : ranks_(ranks),
      rank_(ranks == nullptr ? 0 : ranks->rank()),
      world_size_(ranks == nullptr ? 1 : ranks->world_size()),
      split_(setup.split),
      num_prompts_(setup.num_prompts),
      options_(at::TensorOptions(setup.device).dtype(setup.dtype)),
      gemma_(setup.gemma),
      is_given_(setup.gemma != nullptr),
      counts_bytes_(!is_given_ && setup.gemma_file == nullptr) {
  // What a rank does not hold, it lays out without memory: it needs the sizes.
  const auto meta_gemma = std::make_shared<text::Gemma>(setup.folder, setup.dtype, at::kMeta,
                                                        std::nullopt, setup.gemma_file);
  const text::GemmaConfig& config = meta_gemma->config();
  if (const auto range = layers_to_hold(config.num_layers()); range && !is_given_) {
    gemma_ = std::make_shared<text::Gemma>(setup.folder, setup.dtype, setup.device, range,
                                           setup.gemma_file);
  }
  contexts_ = std::make_unique<text::ContextBuilder>(
      setup.checkpoint, config, setup.folder.string(), setup.dtype,
      holds_contexts() ? setup.device : at::Device(at::kMeta));
}

int DistributedTextEncoder::context_rank(int64_t prompt) const {
  return split_ == config::TextParallel::shard ? world_size_ - 1
                                               : static_cast<int>(prompt % world_size_);
}

bool DistributedTextEncoder::holds_contexts() const {
  for (int64_t prompt = 0; prompt < num_prompts_; ++prompt) {
    if (context_rank(prompt) == rank_) return true;
  }
  return false;
}

std::optional<text::LayerRange> DistributedTextEncoder::layers_to_hold(int64_t num_layers) const {
  if (split_ == config::TextParallel::replicate) {
    return holds_contexts() ? std::optional(text::LayerRange{0, num_layers}) : std::nullopt;
  }
  const text::LayerRange own = layers_of_rank(num_layers, rank_, world_size_);
  return own.size() > 0 ? std::optional(own) : std::nullopt;
}

void DistributedTextEncoder::load() {
  const bool reads_gemma = gemma_ != nullptr && !is_given_;
  if (ranks_ != nullptr && split_ == config::TextParallel::replicate) {
    load_together(*ranks_, reads_gemma, [&](const auto& load_arena) { gemma_->load(load_arena); });
    load_together(*ranks_, holds_contexts(),
                  [&](const auto& load_arena) { contexts_->load(load_arena); });
    return;
  }
  const auto load_own = [&] {
    if (reads_gemma) gemma_->load();
    if (holds_contexts()) contexts_->load();
  };
  if (ranks_ == nullptr) {
    load_own();
  } else {
    comm::agreed(*ranks_, load_own);
  }
}

int64_t DistributedTextEncoder::bytes_read() const {
  return gemma_ == nullptr || !counts_bytes_ ? 0 : gemma_->bytes_read();
}

int64_t DistributedTextEncoder::weight_bytes() const {
  return (gemma_ == nullptr ? 0 : gemma_->weight_bytes()) +
         (holds_contexts() ? contexts_->weight_bytes() : 0);
}

std::vector<text::TextContext> DistributedTextEncoder::encode(
    const std::vector<text::TokenizedPrompt>& prompts) const {
  FLOTILLA_ASSERT(takes(static_cast<int64_t>(prompts.size())));
  std::vector<text::TextContext> contexts(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const text::GemmaTokens tokens = text::trim_padding(prompts[i].ids, prompts[i].mask);
    const bool makes_context = context_rank(static_cast<int64_t>(i)) == rank_;
    if (split_ == config::TextParallel::replicate) {
      if (makes_context) contexts[i] = encode_alone(tokens);
    } else if (makes_context) {
      contexts[i] = run_to_the_end(tokens);
    } else {
      run_own_layers(tokens);
    }
  }
  // Only now, so that no rank waits for a context before it has served the next prompt.
  for (size_t i = 0; i < prompts.size(); ++i) {
    share(contexts[i], context_rank(static_cast<int64_t>(i)));
  }
  return contexts;
}

text::TextContext DistributedTextEncoder::encode_alone(const text::GemmaTokens& tokens) const {
  text::FeatureRows rows(contexts_->feature_config(), tokens.mask, options_);
  at::Tensor hidden = gemma_->embed(tokens.ids);  // [1, T, D]
  rows.add(0, hidden);
  gemma_->run_layers(tokens, all_layers(*gemma_), hidden,
                     [&](int64_t index, const at::Tensor& state) { rows.add(index, state); });
  return contexts_->build(rows);
}

// The next rank gets its state first, so that it works while this one hands its states to the last
// rank. That one takes them prompt by prompt in the order of the ranks; all ranks follow this
// order, so nobody waits in a circle. A rank keeps the states of its own layers and one prompt.
void DistributedTextEncoder::run_own_layers(const text::GemmaTokens& tokens) const {
  const int64_t num_layers = contexts_->feature_config().num_states - 1;
  const text::LayerRange own = layers_of_rank(num_layers, rank_, world_size_);
  if (own.size() == 0) return;
  const auto has_layers = [&](int rank) {
    return layers_of_rank(num_layers, rank, world_size_).size() > 0;
  };
  std::vector<at::Tensor> states;
  at::Tensor hidden;
  if (own.begin == 0) {
    hidden = gemma_->embed(tokens.ids);
    states.push_back(hidden);
  } else {
    int before = rank_ - 1;
    while (!has_layers(before)) --before;
    hidden = receive_state(tokens, before);
  }
  hidden = gemma_->run_layers(tokens, own, hidden, [&](int64_t, const at::Tensor& state) {
    states.push_back(state.contiguous());
  });
  int next = rank_ + 1;
  while (!has_layers(next)) ++next;
  const int last = world_size_ - 1;
  if (next != last) ranks_->send(hidden.contiguous(), next, kStateTag);
  for (const at::Tensor& state : states) ranks_->send(state, last, kStateTag);
}

text::TextContext DistributedTextEncoder::run_to_the_end(const text::GemmaTokens& tokens) const {
  const int64_t num_layers = contexts_->feature_config().num_states - 1;
  const text::LayerRange own = layers_of_rank(num_layers, rank_, world_size_);
  if (own.begin == 0) return encode_alone(tokens);
  text::FeatureRows rows(contexts_->feature_config(), tokens.mask, options_);
  at::Tensor hidden;  // the last state that came: what the layers here go on from
  int64_t index = 0;
  for (int from = 0; from < rank_; ++from) {
    const text::LayerRange theirs = layers_of_rank(num_layers, from, world_size_);
    if (theirs.size() == 0) continue;
    while (index <= theirs.end) {
      hidden = receive_state(tokens, from);
      rows.add(index++, hidden);
    }
  }
  gemma_->run_layers(tokens, own, hidden,
                     [&](int64_t at, const at::Tensor& state) { rows.add(at, state); });
  return contexts_->build(rows);
}

at::Tensor DistributedTextEncoder::receive_state(const text::GemmaTokens& tokens, int from) const {
  at::Tensor state = at::empty(
      {tokens.ids.size(0), tokens.ids.size(1), contexts_->feature_config().hidden_size}, options_);
  ranks_->receive(state, from, kStateTag);
  return state;
}

void DistributedTextEncoder::share(text::TextContext& context, int root) const {
  if (ranks_ == nullptr) return;
  using text::ConnectorKind;
  for (const auto& [rows, kind] : {std::pair{&context.video, ConnectorKind::video},
                                   std::pair{&context.audio, ConnectorKind::audio}}) {
    *rows = rank_ == root
                ? rows->contiguous()
                : at::empty({1, text::kPromptTokens, contexts_->connector_config(kind).width()},
                            options_);
    ranks_->broadcast(*rows, root);
  }
}

}  // namespace flotilla::parallel
