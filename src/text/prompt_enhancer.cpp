#include "text/prompt_enhancer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "text/gemma_decoder.h"
#include "text/prompt_encoder.h"

namespace flotilla::text {
namespace {

constexpr std::string_view kEndOfTurn = "<end_of_turn>";

constexpr std::string_view kTask =
    "You write the text that a video model turns into a clip of a few seconds with sound. A user "
    "gives you a short request. Answer with one paragraph of at most 150 English words and nothing "
    "else: no title, no list, no remarks.\n"
    "Keep everything that the user asks for: who and what appears, what happens, in which order, "
    "in which style. Add details that suit it, never new main characters or events. Words that "
    "somebody speaks stand in quotation marks, in the language that the user wrote them in.\n";

constexpr std::string_view kFromText =
    "Tell what is on the screen at the start, then how it moves, step by step as time goes on. "
    "Tell how the camera is placed and whether it moves, and what the light and the colours are "
    "like. Tell what can be heard: voices, noises of the things that move, the surroundings, "
    "music if it is wanted. Use the present tense and plain, exact words. Write only what an eye "
    "or an ear could notice; no thoughts, no smells.";

constexpr std::string_view kFromImage =
    "The clip starts from a picture that the user has. You cannot see it, so do not invent how "
    "people, things or places look beyond the user's own words. Tell what begins to move, how the "
    "movement goes on step by step, how the camera moves or that it stands still, and what can be "
    "heard: voices, noises of the things that move, the surroundings. Use the present tense and "
    "plain, exact words.";

// In place of the first: the second. Captions are plain text; what no text holds goes.
constexpr std::pair<std::string_view, std::string_view> kReplacements[] = {
    {"\u2018", "'"},   {"\u2019", "'"},   {"\u201C", "\""},     {"\u201D", "\""},
    {"\u2013", "-"},   {"\u2014", " - "}, {"\u2212", "-"},      {"\u00A0", " "},
    {"\u2026", "..."}, {"\u2028", " "},   {"\u2029", " "},      {"\u0085", " "},
    {"\uFFFD", ""},    {"\uFEFF", ""},    {"\xEF\xBF\xBE", ""}, {"\xEF\xBF\xBF", ""},
};

void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

bool is_control(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte <= 0x20 || byte == 0x7F) return true;
  // U+0080 to U+009F are two bytes.
  return byte == 0xC2 && at + 1 < text.size() && static_cast<unsigned char>(text[at + 1]) < 0xA0;
}

bool is_readable(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) {
    return c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  });
}

}  // namespace

std::string enhance_chat(std::string_view prompt, bool has_images) {
  return fmt::format(
      "<start_of_turn>user\n{}{}\n\nRequest: {}<end_of_turn>\n<start_of_turn>model\n", kTask,
      has_images ? kFromImage : kFromText, prompt);
}

bool is_looping(const std::vector<int64_t>& ids) {
  constexpr size_t kLongestPattern = 16;
  constexpr size_t kRepeats = 4;
  constexpr size_t kLeast = 24;  // tokens; a word three times is a way of speaking
  for (size_t period = 1; period <= kLongestPattern; ++period) {
    const size_t span = std::max(kRepeats * period, kLeast);
    if (ids.size() < span) continue;
    const auto tail = ids.end() - static_cast<std::ptrdiff_t>(span);
    if (std::equal(tail + static_cast<std::ptrdiff_t>(period), ids.end(), tail)) return true;
  }
  return false;
}

std::string tidy_reply(std::string_view reply) {
  std::string text(reply);
  for (const auto& [what, by] : kReplacements) replace_all(text, what, by);
  std::string line;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!is_control(text, at)) {
      line += text[at];
      continue;
    }
    if (!line.empty() && line.back() != ' ') line += ' ';
    if (static_cast<unsigned char>(text[at]) >= 0x80) ++at;
  }
  constexpr const char* kMarkup = " *#>_`-";
  const size_t begin = line.find_first_not_of(kMarkup);
  if (begin == std::string::npos) return "";
  const size_t end = line.find_last_not_of(" *_`");
  return line.substr(begin, end - begin + 1);
}

std::string last_whole_sentence(const std::string& text) {
  const size_t end = text.find_last_of(".!?");
  if (end == std::string::npos || end < text.size() / 2) return text;
  const bool is_quoted = end + 1 < text.size() && text[end + 1] == '"';
  return text.substr(0, end + (is_quoted ? 2 : 1));
}

PromptEnhancer::PromptEnhancer(const std::filesystem::path& folder,
                               std::shared_ptr<const Gemma> gemma)
    : tokenizer_(folder), gemma_(std::move(gemma)) {
  const auto end_of_turn = tokenizer_.find_piece(kEndOfTurn);
  if (!end_of_turn || !tokenizer_.find_piece("<start_of_turn>")) {
    fail(ErrorKind::input,
         fmt::format("text.enhance needs a chat model, but tokenizer.model in \"{}\" has no pieces "
                     "\"<start_of_turn>\" and \"{}\"; give an instruction-tuned Gemma 3 folder as "
                     "text.enhancer",
                     folder.string(), kEndOfTurn));
  }
  check_vocabulary(tokenizer_, gemma_->config(), folder);
  end_of_turn_ = *end_of_turn;
}

EnhancedPrompt PromptEnhancer::enhance(std::string_view prompt, bool has_images,
                                       uint64_t seed) const {
  EnhancedPrompt result;
  bool ended = false;
  bool looping = false;
  const auto is_done = [&](const std::vector<int64_t>& so_far) {
    ended = so_far.back() == end_of_turn_ || so_far.back() == tokenizer_.eos_id();
    looping = !ended && is_looping(so_far);
    return ended || looping;
  };
  TokenSampler sampler(kEnhanceSampling, seed);
  const std::vector<int64_t> ids =
      generate(*gemma_,
               {.prompt = tokenizer_.tokens_of(enhance_chat(prompt, has_images)),
                .max_tokens = kEnhanceTokens,
                .num_pieces = tokenizer_.vocab_size(),
                .is_done = is_done},
               sampler);
  result.num_tokens = static_cast<int64_t>(ids.size());
  result.text = tidy_reply(tokenizer_.text_of(ids));
  if (looping) {
    result.end = EnhanceEnd::repeats;
  } else if (!is_readable(result.text)) {
    result.end = EnhanceEnd::empty;
  } else if (!ended) {
    result.end = EnhanceEnd::cut;
    result.text = last_whole_sentence(result.text);
  }
  if (result.end == EnhanceEnd::repeats || result.end == EnhanceEnd::empty) result.text = prompt;
  return result;
}

}  // namespace flotilla::text
