#include "tokenizer/text_encoder.hpp"

#include <algorithm>
#include <cstdlib>

#include <utf8proc.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

constexpr std::size_t kCodePoints = 0x110000;

}  // namespace

std::size_t BytesEncoder::encode(std::string_view text, End /*end*/,
                                 std::vector<std::uint32_t>& ids) {
  const std::size_t before = ids.size();
  ids.resize(before + text.size());
  std::transform(text.begin(), text.end(), ids.begin() + static_cast<std::ptrdiff_t>(before),
                 [](char byte) { return static_cast<unsigned char>(byte); });
  return text.size();
}

std::size_t CodePointsEncoder::encode(std::string_view text, End /*end*/,
                                      std::vector<std::uint32_t>& ids) {
  seen_.resize(kCodePoints);
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Character character = first_character(text.substr(at));
    seen_[character.value] = true;
    ids.push_back(character.value);
    at += character.bytes;
  }
  return at;
}

std::vector<std::uint32_t> CodePointsEncoder::take_characters() {
  std::vector<std::uint32_t> characters;
  for (std::size_t id = 0; id < seen_.size(); ++id) {
    if (seen_[id]) {
      characters.push_back(static_cast<std::uint32_t>(id));
    }
  }
  seen_.clear();
  return characters;
}

std::size_t BytePairsEncoder::split(std::size_t step, std::string_view text, End end,
                                    std::vector<std::uint32_t>& ids) {
  if (step == steps_.size()) {
    std::size_t at = 0;
    for (std::size_t size = pairs_.word_of(text, end); size > 0;
         size = pairs_.word_of(text.substr(at), end)) {
      words_.encode(text.substr(at, size), ids);
      at += size;
    }
    return at;
  }
  if (end == End::kNotYet && steps_[step].looks_back()) {
    return 0;
  }
  const Kept kept = pairs_.tables().splits[step].kept;
  std::size_t begin = 0;  // of the text after the last match
  std::size_t from = 0;   // of the text that is searched
  while (begin < text.size()) {
    const Search::Match match = steps_[step].find(text, from, end);
    const std::string_view rest = text.substr(begin, match.begin - begin);
    const End rest_end = match.is_known ? End::kReached : end;
    const std::size_t used =
        kept == Kept::kMatches || rest.empty() ? rest.size() : split(step + 1, rest, rest_end, ids);
    if (!match.is_known) {
      return begin + used;
    }
    const std::string_view matching = text.substr(match.begin, match.end - match.begin);
    if (kept != Kept::kRest && !matching.empty()) {
      split(step + 1, matching, End::kReached, ids);
    }
    begin = match.end;
    from = begin;
    if (matching.empty() && from < text.size()) {
      from += first_character(text.substr(from)).bytes;
    }
  }
  return begin;
}

namespace {

utf8proc_category_t category_of(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

/// Source: Unicode Technical Standard 18, Unicode Regular Expressions, \w in Annex C.
bool is_word(char32_t character) {
  const utf8proc_category_t category = category_of(character);
  const bool joins = character == 0x200C || character == 0x200D;
  const bool circled = (character >= 0x24B6 && character <= 0x24E9) ||
                       (character >= 0x1F130 && character <= 0x1F149) ||
                       (character >= 0x1F150 && character <= 0x1F169) ||
                       (character >= 0x1F170 && character <= 0x1F189);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || joins || circled;
}

}  // namespace

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && continues_character(text[at])) {
    --at;
  }
  return at;
}

bool is_mark(char32_t character) {
  const utf8proc_category_t category = category_of(character);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

bool is_space(char32_t character) {
  return (character >= 0x09 && character <= 0x0D) || character == 0x20 || character == 0x85 ||
         character == 0xA0 || character == 0x1680 || (character >= 0x2000 && character <= 0x200A) ||
         character == 0x2028 || character == 0x2029 || character == 0x202F || character == 0x205F ||
         character == 0x3000;
}

bool is_solid(char32_t character) {
  const utf8proc_category_t category = category_of(character);
  return (character > 0x20 && character < 0x7F) ||
         (!is_mark(character) && category >= UTF8PROC_CATEGORY_LU &&
          category <= UTF8PROC_CATEGORY_PO);
}

std::size_t end_without_space(std::string_view text, std::size_t begin) {
  std::size_t end = text.size();
  while (end > begin) {
    const std::size_t last = last_character(text.substr(0, end));
    if (!is_space(first_character(text.substr(last)).value)) {
      break;
    }
    end = last;
  }
  return end;
}

std::string in_form(std::string_view text, Form form) {
  if (std::ranges::none_of(text, [](char byte) { return (byte & 0x80) != 0; })) {
    return std::string(text);
  }
  const bool composes = form == Form::kNfc || form == Form::kNfkc;
  const bool is_compatible = form == Form::kNfkc || form == Form::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (is_compatible ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* normalized = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), std::ssize(text),
                   &normalized, options);
  if (bytes < 0) {
    fail(ExitCode::kData, "a text of {} bytes cannot be normalized: {}", text.size(),
         utf8proc_errmsg(bytes));
  }
  std::string result(reinterpret_cast<const char*>(normalized), static_cast<std::size_t>(bytes));
  std::free(normalized);  // NOLINT: utf8proc allocates with malloc
  return result;
}

std::size_t NfcEncoder::encode(std::string_view text, End end, std::vector<std::uint32_t>& ids) {
  // The last character that composes with none before it may compose with what follows.
  const auto composes = [](char32_t character) {
    return is_mark(character) || (character >= 0x1160 && character <= 0x11FF);  // Hangul's vowels
  };
  std::size_t sure = text.size();
  for (bool found = end != End::kNotYet; !found && sure > 0;) {
    sure = last_character(text.substr(0, sure));
    found = !composes(first_character(text.substr(sure)).value);
  }
  waiting_ += in_form(text.substr(0, sure), Form::kNfc);
  if (waiting_.size() > 2 * kLongestWord) {
    fail(ExitCode::kData, "a word has more than {}", bytes_text(kLongestWord));
  }
  waiting_.erase(0, normalized_->encode(waiting_, end, ids));
  return sure;
}

std::size_t ChangingEncoder::encode(std::string_view text, End end,
                                    std::vector<std::uint32_t>& ids) {
  const std::size_t known = end == End::kNotYet ? changer_.known_of(text) : text.size();
  waiting_ += changer_.changed(text.substr(0, known), end);
  if (waiting_.size() > 2 * kLongestWord) {
    fail(ExitCode::kData, "a word has more than {}", bytes_text(kLongestWord));
  }
  waiting_.erase(0, changed_->encode(waiting_, end, ids));
  return known;
}

std::size_t SentencePieceEncoder::encode(std::string_view text, End end,
                                         std::vector<std::uint32_t>& ids) {
  std::size_t at = 0;
  for (std::size_t cut = pieces_.cut_of(text); cut != std::string_view::npos;
       cut = pieces_.cut_of(text.substr(at))) {
    pieces_.encode(text.substr(at, cut), ids);
    at += cut + 1;  // the model puts the space before the next piece
  }
  if (end != End::kNotYet) {
    pieces_.encode(text.substr(at), ids);
    at = text.size();
  }
  return at;
}

AddedTokensEncoder::AddedTokensEncoder(std::unique_ptr<TextEncoder> between,
                                       std::vector<AddedToken> tokens, Markers markers)
    : between_(std::move(between)), tokens_(std::move(tokens)), markers_(markers) {
  for (const AddedToken& token : tokens_) {
    by_text_.emplace(token.text, &token);
    std::vector<std::size_t>& lengths = lengths_[static_cast<unsigned char>(token.text[0])];
    if (std::ranges::find(lengths, token.text.size()) == lengths.end()) {
      lengths.push_back(token.text.size());
      std::ranges::sort(lengths, std::ranges::greater());
    }
    longest_ = std::max(longest_, token.text.size());
    strips_left_ = strips_left_ || token.lstrip;
  }
}

AddedTokensEncoder::Found AddedTokensEncoder::find_in(std::string_view text,
                                                      std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    for (const std::size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
      const auto token = by_text_.find(text.substr(at, length));
      if (token != by_text_.end() && token->first.size() == length) {
        return {at, token->second};
      }
    }
  }
  return {};
}

bool AddedTokensEncoder::is_touched(std::string_view text, std::size_t begin,
                                    std::size_t end) const {
  const char32_t before =
      begin > 0 ? first_character(text.substr(last_character(text.substr(0, begin)))).value : last_;
  return (before != 0 && is_word(before)) ||
         (end < text.size() && is_word(first_character(text.substr(end)).value));
}

std::size_t AddedTokensEncoder::encode(std::string_view text, End end,
                                       std::vector<std::uint32_t>& ids) {
  std::vector<std::pair<std::size_t, std::size_t>> left;  // as text
  std::size_t begin = std::min(taken_, text.size());      // of the text after the last token
  std::size_t found_end = 0;                              // of its text, without white space
  std::size_t from = std::min(ignored_, text.size());
  Found found;
  for (found = find_in(text, from); found.token != nullptr; found = find_in(text, from)) {
    const AddedToken& token = *found.token;
    std::size_t first = found.at;
    std::size_t last = first + token.text.size();
    from = last;
    while (token.rstrip && last < text.size() &&
           is_space(first_character(text.substr(last)).value)) {
      last += first_character(text.substr(last)).bytes;
    }
    const bool needs_next = token.rstrip || token.single_word;
    if (end == End::kNotYet &&
        (text.size() - first < longest_ || (needs_next && last == text.size()))) {
      break;  // more text decides
    }
    if ((token.special && markers_ == Markers::kAsText) ||
        (token.single_word && is_touched(text, first, from))) {
      left.emplace_back(first, from);
      continue;
    }
    if (token.lstrip) {
      // The token before it may have taken all of it.
      first = std::max(end_without_space(text.substr(0, first), begin), begin);
    }
    between_->encode(text.substr(begin, std::max(first, begin) - begin), End::kBeforeToken, ids);
    if (first < last) {
      ids.push_back(token.id);
    }
    begin = last;
    found_end = from;
  }
  std::size_t sure = text.size();
  if (end == End::kNotYet) {
    // A token may begin in the last bytes.
    sure -= std::min(sure, longest_ - 1);
    sure = found.token != nullptr ? std::min(sure, found.at) : sure;
    while (sure > 0 && sure < text.size() && continues_character(text[sure])) {
      --sure;
    }
    sure = std::max(sure, found_end);
    if (strips_left_ && sure > begin) {
      sure = end_without_space(text.substr(0, sure), begin);
    }
  }
  const std::size_t used =
      sure < begin ? sure : begin + between_->encode(text.substr(begin, sure - begin), end, ids);
  taken_ = begin - std::min(begin, used);
  ignored_ -= std::min(ignored_, used);
  for (const auto& [first, last] : left) {
    if (first < used && used < last) {
      ignored_ = last - used;
    }
  }
  if (end != End::kNotYet) {
    last_ = 0;
  } else if (used > 0) {
    last_ = first_character(text.substr(last_character(text.substr(0, used)))).value;
  }
  return used;
}

namespace {

/// The added tokens of a tokenizer, the control symbols of SentencePiece's model among them.
std::vector<AddedToken> added_tokens(const TokenizerContents& contents) {
  std::vector<AddedToken> tokens = contents.added();
  if (contents.pieces) {
    for (const std::uint32_t id : contents.pieces->control_symbols()) {
      if (std::ranges::find(tokens, id, &AddedToken::id) == tokens.end()) {
        tokens.push_back({id, contents.pieces->piece(id)});
      }
    }
  }
  std::erase_if(tokens, [](const AddedToken& token) { return token.text.empty(); });
  return tokens;
}

}  // namespace

std::unique_ptr<TextEncoder> text_encoder(const TokenizerContents& contents, Markers markers) {
  std::unique_ptr<TextEncoder> encoder;
  if (contents.pairs) {
    encoder = std::make_unique<BytePairsEncoder>(*contents.pairs);
  } else if (contents.pieces) {
    encoder = std::make_unique<SentencePieceEncoder>(*contents.pieces);
  } else {
    return std::make_unique<BytesEncoder>();
  }
  std::vector<AddedToken> raw = added_tokens(contents);
  if (markers == Markers::kAsText && std::ranges::all_of(raw, &AddedToken::special)) {
    raw.clear();
  }
  const auto find_first = [&](std::vector<AddedToken> tokens) {
    if (!tokens.empty()) {
      encoder =
          std::make_unique<AddedTokensEncoder>(std::move(encoder), std::move(tokens), markers);
    }
  };
  if (contents.pairs) {
    // Those that are found in normalized text come last, also where it is not changed.
    const auto normalized = std::stable_partition(
        raw.begin(), raw.end(), [](const AddedToken& token) { return !token.normalized; });
    std::vector<AddedToken> later(normalized, raw.end());
    raw.erase(normalized, raw.end());
    const BytePairTables& tables = contents.pairs->tables();
    const bool nfc = tables.normalizer == Normalizer::kNfc;
    const CharacterRules none;
    const CharacterRules& rules = tables.characters ? *tables.characters : none;
    const auto change = [&](const std::vector<TextChange>& changes) {
      if (!changes.empty()) {
        encoder = std::make_unique<ChangingEncoder>(changes, std::move(encoder));
      }
    };
    TextChanger changer(rules.changes);
    for (AddedToken& token : later) {
      token.text =
          nfc ? in_form(token.text, Form::kNfc) : changer.changed(token.text, End::kReached);
    }
    std::erase_if(later, [](const AddedToken& token) { return token.text.empty(); });
    change(rules.later_changes);
    find_first(std::move(later));
    change(rules.changes);
    if (nfc) {
      encoder = std::make_unique<NfcEncoder>(std::move(encoder));
    }
  }
  find_first(std::move(raw));
  return encoder;
}

}  // namespace strata::io
