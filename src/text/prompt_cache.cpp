#include "text/prompt_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace flotilla::text {

const PromptEmbedding* PromptCache::find(const PromptKey& key) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return &entries_.front().embedding;
}

void PromptCache::put(const PromptKey& key, PromptEmbedding embedding) {
  entries_.remove_if([&](const Entry& entry) { return entry.key == key; });
  entries_.push_front({key, std::move(embedding)});
  if (entries_.size() > capacity_) entries_.pop_back();
}

}  // namespace flotilla::text
