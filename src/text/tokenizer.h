// Prompts to token ids: the SentencePiece model (tokenizer.model) of the Gemma folder, wrapped in
// the habits of the LTX-2 reference: text stripped, one BOS in front, left padding, a fixed length.
// Next: gemma.h (ids to hidden states).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::text {

// Rows of every prompt, BOS and padding included; the connectors were trained on this length.
inline constexpr int64_t kPromptTokens = 1024;

struct TokenizedPrompt {
  at::Tensor ids;                  // int64 [1, kPromptTokens] on the CPU, padding on the left
  at::Tensor mask;                 // int64 [1, kPromptTokens], 1 for tokens and 0 for padding
  int64_t num_tokens = 0;          // tokens kept, BOS included
  int64_t num_dropped = 0;         // tokens that found no room; the caller warns
  std::string first_dropped_word;  // the word with the first of them; "" when none
};

class Tokenizer {
 public:
  // Errors (ErrorKind::input, the folder named): tokenizer.model missing, a Git-LFS pointer, not a
  // SentencePiece model, or one without a BOS piece.
  explicit Tokenizer(const std::filesystem::path& gemma_folder);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // The names of control pieces ("<eos>", "<pad>", ...) in a prompt become those pieces, as in the
  // tokenizer.json of the folder. A literal "<bos>" adds nothing: there is exactly one BOS, in
  // front. Errors (ErrorKind::config): the prompt is not valid UTF-8.
  TokenizedPrompt encode(std::string_view prompt) const;

  // BOS and the tokens of `text` as it stands: neither stripped, padded nor cut. Errors: as above.
  std::vector<int64_t> tokens_of(std::string_view text) const;
  // The text of tokens, valid UTF-8. Control pieces and the marks of turns and images leave
  // nothing.
  std::string text_of(const std::vector<int64_t>& ids) const;
  // The piece of this name, such as "<end_of_turn>".
  std::optional<int64_t> find_piece(std::string_view name) const;

  // Ids are below this.
  int64_t vocab_size() const;
  int64_t bos_id() const;
  int64_t eos_id() const;  // -1: the model has none

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace flotilla::text
