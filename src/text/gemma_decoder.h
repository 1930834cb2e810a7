// Gemma as a generator of text: one token after another, with a cache of keys and values. Its next
// reader: prompt_enhancer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "text/gemma.h"
#include "text/token_sampler.h"

namespace flotilla::text {

class GemmaDecoder {
 public:
  // Room for `capacity` tokens. `gemma` is whole, loaded, and must outlive this object.
  GemmaDecoder(const Gemma& gemma, int64_t capacity);

  // Scores of the token behind all tokens so far: float [vocab] on the CPU. The first call brings
  // the prompt, the others one token each. The output layer is the embedding table (tied, see
  // GemmaConfig); a copy of it that some folders store is not read.
  at::Tensor next(const std::vector<int64_t>& ids);

 private:
  const Gemma& gemma_;
  std::vector<KeyValueCache> caches_;  // one a layer
  int64_t length_ = 0;
};

// Tokens behind `prompt`, at most `max_tokens`; asked after each one, `is_done` ends it. Ids are
// below `num_pieces`: tables of embeddings have rows that no piece stands for.
struct GenerationRequest {
  std::vector<int64_t> prompt;
  int64_t max_tokens = 0;
  int64_t num_pieces = 0;
  std::function<bool(const std::vector<int64_t>& so_far)> is_done;
};
std::vector<int64_t> generate(const Gemma& gemma, const GenerationRequest& request,
                              TokenSampler& sampler);

}  // namespace flotilla::text
