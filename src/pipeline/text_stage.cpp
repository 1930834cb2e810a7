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
                .cache_key = {session.files.text_version(), session.files.transformer()->digest(),
                              text, session.plan.dtype}};
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
  const ModelFiles& files = session.files;
  for (Entry& entry : entries) {
    if (entry.is_cached) continue;
    const auto& tokenizer =
        session.residents->tokenizer(files.text_encoder(), files.text_version());
    entry.tokens = tokenizer.encode(entry.cache_key.prompt);
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

// What the driver has of a loaded text encoder, where the enhancer is the same model.
std::shared_ptr<text::Gemma> given_gemma(const Session& session) {
  const auto& files = session.files;
  if (files.enhancer_weights() != files.text_weights()) return nullptr;
  return session.residents->find<text::Gemma>(Kept::enhancer, session.key_of(*files.text_weights()),
                                              /*this rank alone*/ {});
}

// That takes so many prompts. Collective; errors are agreed.
std::shared_ptr<parallel::DistributedTextEncoder> load_encoder(const Session& session,
                                                               int64_t num_prompts) {
  const auto& [files, plan] = std::tie(session.files, session.plan);
  session.make_room("text");
  auto encoder = session.ranks.agreed([&] {
    return session.phases.run("load_text", [&] {
      return std::make_shared<parallel::DistributedTextEncoder>(
          text_ranks(session), parallel::TextEncoderSetup{.checkpoint = files.transformer(),
                                                          .folder = files.text_encoder(),
                                                          .gemma_file = files.text_weights(),
                                                          .dtype = plan.dtype,
                                                          .device = plan.device,
                                                          .split = session.job.text.parallel,
                                                          .num_prompts = num_prompts,
                                                          .gemma = given_gemma(session)});
    });
  });
  session.phases.run("load_text", [&] { encoder->load(); });
  return encoder;
}

void encode_missing(const Session& session, const std::vector<Entry*>& missing) {
  const auto& files = session.files;
  const auto count = static_cast<int64_t>(missing.size());
  const std::string key = session.key_of(*files.transformer()) +
                          session.key_of(*files.text_weights()) +
                          std::string(config::to_string(session.job.text.parallel));
  auto encoder = session.residents->take<parallel::DistributedTextEncoder>(Kept::text_encoder, key,
                                                                           session.ranks);
  if (!encoder || !encoder->takes(count)) {
    encoder.reset();
    encoder = load_encoder(session, count);
  }
  session.residents->put(Kept::text_encoder, key, encoder);
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

// Loaded whole, for the driver alone.
std::shared_ptr<text::Gemma> get_enhancer(const Session& session) {
  const auto& [files, plan] = std::tie(session.files, session.plan);
  return session.residents->get<text::Gemma>(
      Kept::enhancer, session.key_of(*files.enhancer_weights()), /*this rank alone*/ {}, [&] {
        return session.phases.run("load_enhancer", [&] {
          auto made = std::make_shared<text::Gemma>(files.enhancer(), plan.dtype, plan.device,
                                                    std::nullopt, files.enhancer_weights());
          made->load();
          return made;
        });
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
  std::vector<Entry> entries = find_prompts(session, session.residents->prompts(), prompts);
  session.ranks.agreed([&] {
    tokenize_missing(session, entries);
    for (const Entry& entry : entries) report_truncation(session, entry.key, entry.embedding);
  });
  const std::vector<Entry*> missing = distinct_missing(entries);
  if (!missing.empty()) encode_missing(session, missing);
  session.residents->done_with(Kept::enhancer);
  for (const Entry* entry : missing)
    session.residents->prompts().put(entry->cache_key, entry->embedding);

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
  const auto& [job, files] = std::tie(session.job, session.files);
  session.make_room("enhance");
  const std::string text = session.ranks.agreed([&]() -> std::string {
    if (!session.ranks.is_driver()) return "";
    const auto gemma = get_enhancer(session);
    const text::EnhancedPrompt result = session.phases.run("enhance", [&] {
      return text::PromptEnhancer(session.files.enhancer(), gemma)
          .enhance(job.prompt, !job.images.empty(), *job.seed);
    });
    report_enhancement(result);
    return result.text;
  });
  if (files.enhancer_weights() != files.text_weights())
    session.residents->done_with(Kept::enhancer);
  return text_ranks(session) != nullptr ? text_ranks(session)->broadcast(text, 0) : text;
}

}  // namespace flotilla::pipeline
