// The text stage (declared in stages.h): a better prompt where the job asks for one, then the
// contexts of all prompts on all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "parallel/distributed_text_encoder.h"
#include "pipeline/stages.h"
#include "text/prompt_enhancer.h"

namespace flotilla::pipeline {
namespace {

std::filesystem::path real_folder(const std::filesystem::path& path) {
  std::error_code code;
  auto result = std::filesystem::weakly_canonical(path, code);
  return code ? path : result;
}

comm::Communicator* text_ranks(const Session& session) {
  return session.ranks.context != nullptr ? &session.ranks.context->text() : nullptr;
}

// Errors (ErrorKind::config): the prompt was cut and the job does not allow that.
void report_truncation(const Session& session, const std::string& key,
                       const text::PromptEmbedding& prompt) {
  session.phases.add_prompt(prompt.num_dropped > 0);
  if (prompt.num_dropped == 0) return;
  const std::string what =
      fmt::format("{} is too long: {} tokens are used, {} are dropped, from the word \"{}\" on",
                  key, prompt.num_tokens, prompt.num_dropped, excerpt(prompt.first_dropped_word));
  if (session.job.text.strict_length)
    fail(ErrorKind::config, what + "; shorten it, or set text.strict_length: false");
  if (session.ranks.is_driver()) log::warn("text", "{}", what);
}

// A prompt on its way: tokens until it has its contexts.
struct Entry {
  std::string key;  // of the job
  text::PromptKey cache_key;
  bool is_cached = false;
  text::TokenizedPrompt tokens;
  text::PromptEmbedding embedding;
};

std::vector<Entry> find_prompts(const Session& session, text::PromptCache& cache,
                                const std::vector<NamedPrompt>& prompts) {
  std::vector<Entry> entries;
  for (const auto& [key, text] : prompts) {
    Entry entry{.key = key,
                .cache_key = {real_folder(session.files.text_encoder()).string(),
                              session.files.transformer()->digest(), text, session.plan.dtype}};
    const text::PromptEmbedding* found = cache.find(entry.cache_key);
    // Encoding is collective, so all ranks must see the same prompts missing.
    const int64_t is_missing = found == nullptr ? 1 : 0;
    comm::Communicator* ranks = text_ranks(session);
    entry.is_cached = (ranks != nullptr ? ranks->all_max(is_missing) : is_missing) == 0;
    if (entry.is_cached) entry.embedding = *found;
    entries.push_back(std::move(entry));
  }
  return entries;
}

void tokenize_missing(const Session& session, std::vector<Entry>& entries) {
  std::optional<text::Tokenizer> tokenizer;
  for (Entry& entry : entries) {
    if (entry.is_cached) continue;
    if (!tokenizer) tokenizer.emplace(session.files.text_encoder());
    entry.tokens = tokenizer->encode(entry.cache_key.prompt);
    entry.embedding.num_tokens = entry.tokens.num_tokens;
    entry.embedding.num_dropped = entry.tokens.num_dropped;
    entry.embedding.first_dropped_word = entry.tokens.first_dropped_word;
  }
}

// Missing prompts, each text once.
std::vector<Entry*> distinct_missing(std::vector<Entry>& entries) {
  std::vector<Entry*> missing;
  for (Entry& entry : entries) {
    const bool is_known =
        entry.is_cached || std::any_of(missing.begin(), missing.end(), [&](const Entry* other) {
          return other->cache_key == entry.cache_key;
        });
    if (!is_known) missing.push_back(&entry);
  }
  return missing;
}

void encode_missing(const Session& session, std::shared_ptr<text::Gemma> gemma,
                    const std::vector<Entry*>& missing) {
  const auto& [files, plan] = std::tie(session.files, session.plan);
  const auto encoder = session.ranks.agreed([&] {
    return session.phases.run("load_text", [&] {
      return std::make_unique<parallel::DistributedTextEncoder>(
          text_ranks(session),
          parallel::TextEncoderSetup{.checkpoint = files.transformer(),
                                     .folder = files.text_encoder(),
                                     .dtype = plan.dtype,
                                     .device = plan.device,
                                     .split = session.job.text.parallel,
                                     .num_prompts = static_cast<int64_t>(missing.size()),
                                     .gemma = std::move(gemma)});
    });
  });
  session.phases.run("load_text", [&] { encoder->load(); });
  session.phases.add_bytes_read(encoder->bytes_read());
  session.safe_point();
  session.phases.run("text", [&] {
    std::vector<text::TokenizedPrompt> tokens;
    for (const Entry* entry : missing) tokens.push_back(entry->tokens);
    const auto contexts = encoder->encode(tokens);
    for (size_t i = 0; i < missing.size(); ++i) {
      missing[i]->embedding.video_context = contexts[i].video;
      missing[i]->embedding.audio_context = contexts[i].audio;
    }
  });
}

void report_enhancement(const text::EnhancedPrompt& result) {
  switch (result.end) {
    case text::EnhanceEnd::done:
      break;
    case text::EnhanceEnd::cut:
      log::warn("enhance",
                "the text model was stopped after {} tokens; its last whole sentence is the end",
                result.num_tokens);
      break;
    case text::EnhanceEnd::empty:
      log::warn("enhance", "the text model gave no text; the prompt stays as it is");
      return;
    case text::EnhanceEnd::repeats:
      log::warn("enhance", "the text model repeats itself; the prompt stays as it is");
      return;
  }
  log::info("enhance", "prompt \"{}\"", excerpt(result.text, 4000));
}

}  // namespace

std::vector<text::TextContext> encode_prompts(const Session& session,
                                              const std::vector<NamedPrompt>& prompts) {
  TextResidents own;
  TextResidents& kept = session.text != nullptr ? *session.text : own;
  auto gemma = std::exchange(kept.gemma, nullptr);
  std::vector<Entry> entries = find_prompts(session, kept.prompts, prompts);
  session.ranks.agreed([&] {
    tokenize_missing(session, entries);
    for (const Entry& entry : entries) report_truncation(session, entry.key, entry.embedding);
  });
  const std::vector<Entry*> missing = distinct_missing(entries);
  if (!missing.empty()) encode_missing(session, std::move(gemma), missing);
  for (const Entry* entry : missing) kept.prompts.put(entry->cache_key, entry->embedding);

  std::vector<text::TextContext> contexts;
  for (const Entry& entry : entries) {
    // A text that the job has twice was encoded once.
    const auto same = std::find_if(entries.begin(), entries.end(), [&](const Entry& other) {
      return other.cache_key == entry.cache_key;
    });
    contexts.push_back({same->embedding.video_context, same->embedding.audio_context});
  }
  return contexts;
}

std::string enhance_prompt(const Session& session) {
  const auto& [job, files, plan] = std::tie(session.job, session.files, session.plan);
  const auto& folder = job.text.enhancer.empty() ? files.text_encoder() : job.text.enhancer;
  const std::string text = session.ranks.agreed([&]() -> std::string {
    if (!session.ranks.is_driver()) return "";
    const auto gemma = session.phases.run("load_enhancer", [&] {
      auto made = std::make_shared<text::Gemma>(folder, plan.dtype, plan.device);
      made->load();
      session.phases.add_bytes_read(made->bytes_read());
      return made;
    });
    const text::EnhancedPrompt result = session.phases.run("enhance", [&] {
      return text::PromptEnhancer(folder, gemma)
          .enhance(job.prompt, !job.images.empty(), *job.seed);
    });
    report_enhancement(result);
    const bool is_encoder = real_folder(folder) == real_folder(files.text_encoder());
    if (session.text != nullptr && is_encoder) session.text->gemma = gemma;
    return result.text;
  });
  return text_ranks(session) != nullptr ? text_ranks(session)->broadcast(text, 0) : text;
}

}  // namespace flotilla::pipeline
