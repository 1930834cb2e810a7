// The text encoder on several ranks. The contexts reach every rank and are the bytes of one rank's,
// since every rank computes whole matrices.
//
//   shard      Gemma's layers lie on the ranks in order, each rank reads its own only. The state of
//              the tokens goes from rank to rank. All states meet on the last rank, which holds the
//              text projection and the connectors. Prompts follow each other through the ranks.
//   replicate  Prompts are dealt over the ranks; a rank that has one holds everything, the others
//              nothing. Those that have one read a share each and pass it on.
//
// More ranks than layers or prompts is legal: some have nothing to do.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "config/enums.h"
#include "text/context_builder.h"
#include "text/gemma.h"
#include "text/tokenizer.h"

namespace flotilla::parallel {

// Layers of `rank`: contiguous, in the order of the ranks, counts differ by one at most, and the
// last rank has the last layer.
text::LayerRange layers_of_rank(int64_t num_layers, int rank, int world_size);

struct TextEncoderSetup {
  std::shared_ptr<const loader::Checkpoint> checkpoint;  // with projection and connectors
  std::filesystem::path folder;                          // Gemma's
  // Its weights, where they are open already.
  std::shared_ptr<const loader::Checkpoint> gemma_file = nullptr;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  config::TextParallel split = config::TextParallel::shard;
  int64_t num_prompts = 1;  // at most, in one call of encode(); matters to `replicate` only
  // This rank's loaded whole Gemma of the folder, when it has one already: none is read then.
  std::shared_ptr<text::Gemma> gemma = nullptr;
};

class DistributedTextEncoder {
 public:
  // Lays out what this rank holds and checks names and shapes; no weight is read. `ranks`: null for
  // a process alone; must outlive this object. Local. Errors: those of Gemma and ContextBuilder.
  DistributedTextEncoder(comm::Communicator* ranks, const TextEncoderSetup& setup);

  // Reads the weights, which all ranks together read once. Once. Collective, when every rank has
  // made its object: agree on that before. Errors, agreed: see WeightArena::load().
  void load();

  // Whether encode() takes so many prompts.
  bool takes(int64_t num_prompts) const {
    return split_ == config::TextParallel::shard || num_prompts <= num_prompts_ ||
           num_prompts_ >= world_size_;
  }
  // Collective. The same prompts on all ranks; each result on every rank, on its device.
  std::vector<text::TextContext> encode(const std::vector<text::TokenizedPrompt>& prompts) const;

  // Bytes read from the folder's files for this object, where it has opened them itself.
  int64_t bytes_read() const;
  // Of the weights that this rank holds.
  int64_t weight_bytes() const;

 private:
  // The rank that makes the context of a prompt.
  int context_rank(int64_t prompt) const;
  std::optional<text::LayerRange> layers_to_hold(int64_t num_layers) const;
  bool holds_contexts() const;

  text::TextContext encode_alone(const text::GemmaTokens& tokens) const;
  // The part of `shard` on a rank before the last one.
  void run_own_layers(const text::GemmaTokens& tokens) const;
  // And on the last one.
  text::TextContext run_to_the_end(const text::GemmaTokens& tokens) const;
  at::Tensor receive_state(const text::GemmaTokens& tokens, int from) const;
  // The root's context on all ranks.
  void share(text::TextContext& context, int root) const;

  comm::Communicator* ranks_;
  int rank_;
  int world_size_;
  config::TextParallel split_;
  int64_t num_prompts_;
  at::TensorOptions options_;
  std::shared_ptr<text::Gemma> gemma_;  // null: this rank has no layers
  bool is_given_;
  bool counts_bytes_;
  std::unique_ptr<text::ContextBuilder> contexts_;  // on ranks without: kMeta, for its sizes
};

}  // namespace flotilla::parallel
