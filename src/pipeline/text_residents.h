// What of the text path a process keeps between its uses.
#pragma once

#include <memory>

#include "text/gemma.h"
#include "text/prompt_cache.h"

namespace flotilla::pipeline {

struct TextResidents {
  text::PromptCache prompts;
  // Whole and loaded: left by enhance_prompt() for the encode_prompts() that follows, so that the
  // folder is read once. On the driver only.
  std::shared_ptr<text::Gemma> gemma;
};

}  // namespace flotilla::pipeline
