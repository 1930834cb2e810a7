// Encoded prompts of a process, so that a job with a prompt that was seen before needs no text
// encoder. The oldest in use go first when it is full.
#pragma once

#include <ATen/core/ScalarType.h>

#include <list>
#include <string>

#include "text/prompt_encoder.h"

namespace flotilla::text {

// All that an encoded prompt depends on.
struct PromptKey {
  std::string text_encoder;  // folder
  std::string checkpoint;    // digest of the file with projection and connectors
  std::string prompt;
  at::ScalarType dtype = at::ScalarType::Float;
  bool operator==(const PromptKey&) const = default;
};

class PromptCache {
 public:
  // One entry of a released model is 12 MiB in bf16, on the device of the run.
  explicit PromptCache(size_t capacity = 16) : capacity_(capacity) {}

  // Null when it is not there. Valid until the next put(); counts as a use.
  const PromptEmbedding* find(const PromptKey& key);
  void put(const PromptKey& key, PromptEmbedding embedding);
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    PromptKey key;
    PromptEmbedding embedding;
  };
  size_t capacity_;
  std::list<Entry> entries_;  // the last used one first
};

}  // namespace flotilla::text
