// Rewrites a short prompt into the full description that the diffusion model was trained on, with
// Gemma as a chat model (text.enhance). Temperature and length limit are those of the LTX-2
// reference, top-k and top-p those of released Gemma 3 folders; the instructions are our own. The
// image branch of Gemma is not built: for a job with images the instruction says that there is a
// picture, and the model does not see it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/gemma.h"
#include "text/token_sampler.h"
#include "text/tokenizer.h"

namespace flotilla::text {

inline constexpr Sampling kEnhanceSampling = {.temperature = 0.7, .top_k = 64, .top_p = 0.95};
inline constexpr int64_t kEnhanceTokens = 512;

enum class EnhanceEnd {
  done,     // the model ended its turn
  cut,      // at the limit; the last whole sentence is the end
  empty,    // nothing that could be read
  repeats,  // the model fell into a loop
};

struct EnhancedPrompt {
  EnhanceEnd end = EnhanceEnd::done;
  std::string text;  // one line; of `empty` and `repeats`: the prompt as it was
  int64_t num_tokens = 0;
};

class PromptEnhancer {
 public:
  // `gemma` must be whole. Errors (ErrorKind::input): the tokenizer has no pieces for the turns of
  // a chat, or more pieces than `gemma` has embeddings.
  PromptEnhancer(const std::filesystem::path& folder, std::shared_ptr<const Gemma> gemma);

  // The weights must be loaded. `seed` starts the sampler: the same seed gives the same text.
  EnhancedPrompt enhance(std::string_view prompt, bool has_images, uint64_t seed) const;

 private:
  Tokenizer tokenizer_;
  std::shared_ptr<const Gemma> gemma_;
  int64_t end_of_turn_ = 0;
};

// What the model reads: Gemma's chat with the instruction in front of the user's words.
std::string enhance_chat(std::string_view prompt, bool has_images);

// True when the last tokens are one short pattern again and again.
bool is_looping(const std::vector<int64_t>& ids);

// One line without marks of formatting and typographic quotes, as captions are written.
std::string tidy_reply(std::string_view reply);
// Up to the end of the last whole sentence; all of it when there is none in its second half.
std::string last_whole_sentence(const std::string& text);

}  // namespace flotilla::text
