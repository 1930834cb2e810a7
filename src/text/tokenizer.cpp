#include "text/tokenizer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "text/gemma_folder.h"

namespace flotilla::text {
namespace {

// Bytes of the whitespace character at `at`, 0 when there is none. The set is that of Python's
// str.strip (Unicode bidirectional types WS, B, S and category Zs), which the reference applies.
size_t whitespace_bytes(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if ((byte >= 0x09 && byte <= 0x0D) || (byte >= 0x1C && byte <= 0x20)) return 1;
  static constexpr std::string_view kWide[] = {"\u0085", "\u00A0", "\u1680", "\u2000", "\u2001",
                                               "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
                                               "\u2007", "\u2008", "\u2009", "\u200A", "\u2028",
                                               "\u2029", "\u202F", "\u205F", "\u3000"};
  for (const auto space : kWide) {
    if (text.substr(at).starts_with(space)) return space.size();
  }
  return 0;
}

std::string_view strip(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t space = whitespace_bytes(text, begin);
    if (space == 0) break;
    begin += space;
  }
  size_t end = begin;  // behind the last character that is no whitespace
  for (size_t at = begin; at < text.size();) {
    const size_t space = whitespace_bytes(text, at);
    at += std::max<size_t>(space, 1);
    if (space == 0) end = at;
  }
  return text.substr(begin, end - begin);
}

// The word of `text` that holds byte `at`, or the next one when `at` is in whitespace.
std::string_view word_at(std::string_view text, size_t at) {
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t space = whitespace_bytes(text, i);
    if (space == 0) {
      ++i;
      continue;
    }
    if (i > at && i > begin) return text.substr(begin, i - begin);
    i += space;
    begin = i;
  }
  return text.substr(begin);
}

// Names of pieces that structure a chat and are no text, though they can be typed.
constexpr std::string_view kMarks[] = {"<start_of_turn>", "<end_of_turn>", "<start_of_image>",
                                       "<end_of_image>", "<image_soft_token>"};

void check_utf8(std::string_view prompt) {
  if (is_valid_utf8(prompt)) return;
  fail(ErrorKind::config,
       fmt::format("the prompt \"{}\" is not valid UTF-8; save the job file as UTF-8",
                   excerpt(prompt)));
}

struct Token {
  int64_t id;
  size_t begin;  // byte in the stripped prompt
};

}  // namespace

struct Tokenizer::Impl {
  // A piece that SentencePiece does not look for in text, with the name that stands for it.
  struct Special {
    std::string name;
    int64_t id;
  };

  sentencepiece::SentencePieceProcessor pieces;
  std::vector<Special> specials;
  int64_t pad_id = 0;

  // The longest special whose name starts at `at`; nullptr when none does.
  const Special* special_at(std::string_view text, size_t at) const {
    const Special* found = nullptr;
    for (const auto& special : specials) {
      if (!text.substr(at).starts_with(special.name)) continue;
      if (found == nullptr || special.name.size() > found->name.size()) found = &special;
    }
    return found;
  }

  void append_plain(std::string_view text, size_t begin, size_t end,
                    std::vector<Token>& out) const {
    if (begin == end) return;
    sentencepiece::ImmutableSentencePieceText encoded;
    const auto status = pieces.Encode(text.substr(begin, end - begin), encoded.mutable_proto());
    FLOTILLA_ASSERT(status.ok());
    for (const auto& piece : encoded.pieces()) {
      out.push_back({static_cast<int64_t>(piece.id()), begin + piece.begin()});
    }
  }

  std::vector<Token> tokenize(std::string_view text) const {
    std::vector<Token> tokens = {{pieces.bos_id(), 0}};
    size_t plain = 0;  // start of the text since the last special
    for (size_t at = 0; at < text.size();) {
      const Special* special = special_at(text, at);
      if (special == nullptr) {
        ++at;
        continue;
      }
      append_plain(text, plain, at, tokens);
      if (special->id != pieces.bos_id()) tokens.push_back({special->id, at});
      at += special->name.size();
      plain = at;
    }
    append_plain(text, plain, text.size(), tokens);
    return tokens;
  }
};

Tokenizer::Tokenizer(const std::filesystem::path& gemma_folder) {
  auto impl = std::make_unique<Impl>();
  const std::string model = read_gemma_file(gemma_folder, "tokenizer.model");
  const auto status = impl->pieces.LoadFromSerializedProto(model);
  if (!status.ok()) {
    fail(ErrorKind::input, fmt::format("\"{}\" is not a SentencePiece model",
                                       (gemma_folder / "tokenizer.model").string()));
  }
  const auto& pieces = impl->pieces;
  if (pieces.bos_id() < 0) {
    fail(ErrorKind::input,
         fmt::format("\"{}\" has no beginning-of-sequence piece, which Gemma needs",
                     (gemma_folder / "tokenizer.model").string()));
  }
  impl->pad_id = pieces.pad_id() >= 0 ? pieces.pad_id() : std::max(pieces.eos_id(), 0);
  for (int id = 0; id < pieces.GetPieceSize(); ++id) {
    if (pieces.IsControl(id) || pieces.IsUnknown(id)) {
      impl->specials.push_back({pieces.IdToPiece(id), id});
    }
  }
  impl_ = std::move(impl);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

int64_t Tokenizer::vocab_size() const { return impl_->pieces.GetPieceSize(); }
int64_t Tokenizer::bos_id() const { return impl_->pieces.bos_id(); }
int64_t Tokenizer::eos_id() const { return impl_->pieces.eos_id(); }

std::vector<int64_t> Tokenizer::tokens_of(std::string_view text) const {
  check_utf8(text);
  std::vector<int64_t> ids;
  for (const Token& token : impl_->tokenize(text)) ids.push_back(token.id);
  return ids;
}

std::string Tokenizer::text_of(const std::vector<int64_t>& ids) const {
  const auto& pieces = impl_->pieces;
  std::vector<int> kept;
  for (const int64_t id : ids) {
    const int piece = static_cast<int>(id);
    FLOTILLA_ASSERT(piece >= 0 && piece < pieces.GetPieceSize());
    const bool is_mark = std::find(std::begin(kMarks), std::end(kMarks), pieces.IdToPiece(piece)) !=
                         std::end(kMarks);
    if (!is_mark && !pieces.IsControl(piece) && !pieces.IsUnknown(piece)) kept.push_back(piece);
  }
  std::string text;
  const auto status = pieces.Decode(kept, &text);  // bytes that are no UTF-8 become U+FFFD
  FLOTILLA_ASSERT(status.ok());
  return text;
}

std::optional<int64_t> Tokenizer::find_piece(std::string_view name) const {
  const int id = impl_->pieces.PieceToId(name);
  if (impl_->pieces.IdToPiece(id) != name) return std::nullopt;  // unknown ones get a stand-in
  return id;
}

TokenizedPrompt Tokenizer::encode(std::string_view prompt) const {
  check_utf8(prompt);
  const std::string_view text = strip(prompt);
  const std::vector<Token> tokens = impl_->tokenize(text);

  TokenizedPrompt result;
  const auto num_all = static_cast<int64_t>(tokens.size());
  result.num_tokens = std::min(num_all, kPromptTokens);
  result.num_dropped = num_all - result.num_tokens;
  if (result.num_dropped > 0) {
    result.first_dropped_word = word_at(text, tokens[static_cast<size_t>(kPromptTokens)].begin);
  }
  result.ids = at::full({1, kPromptTokens}, impl_->pad_id, at::kLong);
  result.mask = at::zeros({1, kPromptTokens}, at::kLong);
  const int64_t padding = kPromptTokens - result.num_tokens;
  for (int64_t i = 0; i < result.num_tokens; ++i) {
    result.ids.data_ptr<int64_t>()[padding + i] = tokens[static_cast<size_t>(i)].id;
    result.mask.data_ptr<int64_t>()[padding + i] = 1;
  }
  return result;
}

}  // namespace flotilla::text
