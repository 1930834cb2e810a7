#include "text/prompt_encoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "text/gemma_folder.h"

namespace flotilla::text {
namespace fs = std::filesystem;
namespace {

// The whole folder is checked before its first file is opened, so one message names all that is
// missing.
Tokenizer open_tokenizer(const fs::path& gemma_folder) {
  check_gemma_folder(gemma_folder);
  return Tokenizer(gemma_folder);
}

}  // namespace

void check_vocabulary(const Tokenizer& tokenizer, const GemmaConfig& gemma,
                      const fs::path& folder) {
  if (tokenizer.vocab_size() <= gemma.vocab_size) return;
  fail(ErrorKind::input,
       fmt::format("tokenizer.model in \"{}\" has {} pieces, but the model only {} embeddings; "
                   "they are of different models",
                   folder.string(), tokenizer.vocab_size(), gemma.vocab_size));
}

PromptEncoder::PromptEncoder(std::shared_ptr<const loader::Checkpoint> checkpoint,
                             const fs::path& gemma_folder, at::ScalarType dtype, at::Device device,
                             std::shared_ptr<const loader::Checkpoint> gemma_weights)
    : tokenizer_(open_tokenizer(gemma_folder)),
      gemma_(std::make_unique<Gemma>(gemma_folder, dtype, device, std::nullopt,
                                     std::move(gemma_weights))),
      contexts_(std::make_unique<ContextBuilder>(std::move(checkpoint), gemma_->config(),
                                                 gemma_folder.string(), dtype, device)) {
  check_vocabulary(tokenizer_, gemma_->config(), gemma_folder);
}

void PromptEncoder::load(const loader::LoadArena& load) {
  gemma_->load(load);
  contexts_->load(load);
}

const Gemma& PromptEncoder::gemma() const {
  FLOTILLA_ASSERT(gemma_ != nullptr);
  return *gemma_;
}

PromptEmbedding PromptEncoder::encode(std::string_view prompt) const {
  TokenizedPrompt tokens = tokenizer_.encode(prompt);
  TextContext context = contexts_->build(gemma().forward(tokens.ids, tokens.mask));
  return {std::move(context.video), std::move(context.audio), tokens.num_tokens, tokens.num_dropped,
          std::move(tokens.first_dropped_word)};
}

}  // namespace flotilla::text
