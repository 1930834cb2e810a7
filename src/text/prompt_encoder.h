// From a prompt to the contexts of the diffusion model: tokenizer, Gemma, text features,
// connectors. The pieces are objects of their own; Gemma, by far the largest, can be freed alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "loader/checkpoint.h"
#include "text/context_builder.h"
#include "text/gemma.h"
#include "text/tokenizer.h"

namespace flotilla::text {

struct PromptEmbedding {
  at::Tensor video_context;  // [1, kPromptTokens, Dv]
  at::Tensor audio_context;  // [1, kPromptTokens, Da]
  int64_t num_tokens = 0;    // see TokenizedPrompt
  int64_t num_dropped = 0;
  std::string first_dropped_word;
};

// Errors (ErrorKind::input): more pieces than the model has embeddings.
void check_vocabulary(const Tokenizer& tokenizer, const GemmaConfig& gemma,
                      const std::filesystem::path& folder);

class PromptEncoder {
 public:
  // Checks the folder, both files and that they fit each other; no weight is read. Device kMeta:
  // the check alone, for validation and dry runs. `gemma_weights`: see Gemma. Errors: those of
  // Tokenizer, Gemma and ContextBuilder; a tokenizer with more pieces than Gemma has embeddings
  // (ErrorKind::input).
  PromptEncoder(std::shared_ptr<const loader::Checkpoint> checkpoint,
                const std::filesystem::path& gemma_folder, at::ScalarType dtype, at::Device device,
                std::shared_ptr<const loader::Checkpoint> gemma_weights = nullptr);

  // Reads the weights of all pieces. Once. Collective if `load` is.
  void load(const loader::LoadArena& load = loader::load_alone);

  // The result is on the encoder's device, in its dtype. Errors: see Tokenizer::encode().
  PromptEmbedding encode(std::string_view prompt) const;

  // Frees Gemma's weights; encode() must not be called any more.
  void release_gemma() { gemma_.reset(); }

  const Tokenizer& tokenizer() const { return tokenizer_; }
  const Gemma& gemma() const;
  const ContextBuilder& contexts() const { return *contexts_; }

 private:
  Tokenizer tokenizer_;
  std::unique_ptr<Gemma> gemma_;
  std::unique_ptr<ContextBuilder> contexts_;
};

}  // namespace flotilla::text
