#include "tokenizer/text_changes.hpp"

#include <algorithm>
#include <optional>

#include <utf8proc.h>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

#include "tokenizer/character_map.hpp"
#include "tokenizer/text_encoder.hpp"

namespace strata::io {
namespace {

using Kind = TextChange::Kind;

bool is_one_character(std::string_view text) {
  return !text.empty() && first_character(text).bytes == text.size();
}

/// Whether every character is visible ASCII, and there is one.
bool is_visible(std::string_view text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](char byte) { return byte > 0x20 && byte < 0x7F; });
}

/// Calls `function` with each character's text.
template <typename Function>
void for_each_character(std::string_view text, const Function& function) {
  while (!text.empty()) {
    const std::size_t bytes = first_character(text).bytes;
    function(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
}

/// Calls `function` with each extended grapheme cluster.
/// Source: Unicode Standard Annex 29, Unicode Text Segmentation.
template <typename Function>
void for_each_cluster(std::string_view text, const Function& function) {
  std::size_t begin = 0;
  std::size_t at = 0;
  utf8proc_int32_t before = -1;
  utf8proc_int32_t state = 0;
  for_each_character(text, [&](std::string_view character) {
    const auto value = static_cast<utf8proc_int32_t>(first_character(character).value);
    if (before >= 0 && utf8proc_grapheme_break_stateful(before, value, &state) != 0) {
      function(text.substr(begin, at - begin));
      begin = at;
    }
    before = value;
    at += character.size();
  });
  if (at > begin) {
    function(text.substr(begin));
  }
}

// As Hugging Face's library does it: a short cluster as a whole, else character by character, and
// of each the shortest entry of the map that it begins with.
std::string mapped(std::string_view map, std::string_view text) {
  constexpr std::size_t kLongestCluster = 5;
  std::string result;
  for_each_cluster(text, [&](std::string_view cluster) {
    const auto whole = cluster.size() <= kLongestCluster ? replacement_in(map, cluster)
                                                         : std::optional<std::string_view>();
    if (whole) {
      result += *whole;
      return;
    }
    for_each_character(cluster, [&](std::string_view character) {
      result += replacement_in(map, character).value_or(character);
    });
  });
  return result;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    result += text.substr(0, at);
    result += to;
    text.remove_prefix(at + from.size());
  }
  return result += text;
}

std::string replaced(std::string_view text, const Expression& from, std::string_view to) {
  Search search(from);
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Search::Match match = search.find(text, at, End::kReached);
    if (!match.is_known) {
      break;
    }
    if (match.begin == match.end) {
      at = match.end < text.size() ? match.end + first_character(text.substr(match.end)).bytes
                                   : text.size();
      continue;
    }
    result += text.substr(done, match.begin - done);
    result += to;
    done = match.end;
    at = done;
  }
  return result += text.substr(done);
}

std::string in_lower_case(std::string_view text) {
  constexpr char32_t kDottedI = 0x130;  // the one character that becomes two
  std::string result;
  for_each_character(text, [&](std::string_view character) {
    const char32_t value = first_character(character).value;
    append_utf8(value == kDottedI
                    ? U'i'
                    : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(value))),
                result);
    if (value == kDottedI) {
      append_utf8(0x307, result);
    }
  });
  return result;
}

std::string without_marks(std::string_view text) {
  std::string result;
  for_each_character(text, [&](std::string_view character) {
    if (!is_mark(first_character(character).value)) {
      result += character;
    }
  });
  return result;
}

std::size_t space_before(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size() && is_space(first_character(text.substr(at)).value)) {
    at += first_character(text.substr(at)).bytes;
  }
  return at;
}

/// Puts `mark` before each word that does not begin with it, but where `begun` a word that begins
/// the text is the rest of one.
std::string marked_words(std::string_view text, std::string_view mark, bool begun) {
  std::string result;
  while (true) {
    const std::size_t space = space_before(text);
    text.remove_prefix(space);
    if (text.empty()) {
      return result;
    }
    if ((space > 0 || !begun) && !text.starts_with(mark)) {
      result += mark;
    }
    begun = true;
    std::size_t end = 0;
    while (end < text.size() && !is_space(first_character(text.substr(end)).value)) {
      end += first_character(text.substr(end)).bytes;
    }
    result += text.substr(0, end);
    text.remove_prefix(end);
  }
}

}  // namespace

TextChanger::TextChanger(std::vector<TextChange> changes)
    : changes_(std::move(changes)), begun_(changes_.size()) {
  for (const TextChange& change : changes_) {
    cut_ = std::max(cut_, cut_of(change));
    expressions_.push_back(change.kind == Kind::kReplaceMatches
                               ? std::make_unique<const Expression>(change.from)
                               : nullptr);
    if (change.kind == Kind::kMap && !character_map_is_sound(change.from)) {
      fail(ExitCode::kData, "the character map of its normalizer is damaged; copy the file again");
    }
  }
}

// Before white space after a visible character no change looks at both sides, if every change
// before it has left that character visible.
TextChanger::Cut TextChanger::cut_of(const TextChange& change) {
  const bool keeps_space = change.from == " " && is_one_character(change.to);
  switch (change.kind) {
    case Kind::kPrepend:
    case Kind::kPrependMissing:
    case Kind::kPrependFirst:
    case Kind::kLowercase:
      return Cut::kAnywhere;
    case Kind::kReplace:
      return keeps_space                                        ? Cut::kAnywhere
             : is_visible(change.from) && is_visible(change.to) ? Cut::kBeforeSpace
                                                                : Cut::kNowhere;
    case Kind::kReplaceMatches:
      return change.from == " {2,}" && is_one_character(change.to) ? Cut::kBeforeSpace
                                                                   : Cut::kNowhere;
    default:
      return Cut::kBeforeSpace;
  }
}

std::size_t TextChanger::known_of(std::string_view text) const {
  if (cut_ == Cut::kAnywhere) {
    return text.size();
  }
  for (std::size_t at = cut_ == Cut::kNowhere ? 0 : text.size(); at-- > 1;) {
    if (text[at] == ' ' || text[at] == '\n') {
      const std::string_view before = text.substr(0, at);
      if (is_solid(first_character(before.substr(last_character(before))).value)) {
        return at;
      }
    }
  }
  return 0;
}

std::string TextChanger::changed(std::string_view part, End end) {
  std::string text(part);
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    text = apply(i, text, end);
  }
  if (end != End::kNotYet) {
    begun_.assign(changes_.size(), false);
    begins_document_ = end == End::kReached;
  }
  return text;
}

std::string TextChanger::apply(std::size_t index, std::string_view text, End end) {
  const TextChange& change = changes_[index];
  const bool begins = !begun_[index] && !text.empty();
  const auto prepended = [&](bool missing) {
    begun_[index] = begun_[index] || begins;
    return begins && missing ? change.to + std::string(text) : std::string(text);
  };
  switch (change.kind) {
    case Kind::kPrepend:
      return prepended(true);
    case Kind::kPrependMissing:
      return prepended(!text.starts_with(change.to));
    case Kind::kPrependFirst:
      return prepended(begins_document_ && !text.starts_with(change.to));
    case Kind::kWords: {
      std::string words = marked_words(text, change.to, begun_[index]);
      begun_[index] = begun_[index] || !words.empty();
      return words;
    }
    case Kind::kReplace:
      return replaced(text, change.from, change.to);
    case Kind::kReplaceMatches:
      return replaced(text, *expressions_[index], change.to);
    case Kind::kMap:
      return mapped(change.from, text);
    case Kind::kNfc:
      return in_form(text, Form::kNfc);
    case Kind::kNfd:
      return in_form(text, Form::kNfd);
    case Kind::kNfkc:
      return in_form(text, Form::kNfkc);
    case Kind::kNfkd:
      return in_form(text, Form::kNfkd);
    case Kind::kLowercase:
      return in_lower_case(text);
    case Kind::kStripAccents:
      return without_marks(text);
    case Kind::kStripLeft: {
      const std::string_view rest = text.substr(begun_[index] ? 0 : space_before(text));
      begun_[index] = begun_[index] || !rest.empty();
      return std::string(rest);
    }
    case Kind::kStripRight:
      return std::string(
          text.substr(0, end == End::kNotYet ? text.size() : end_without_space(text, 0)));
  }
  return std::string(text);
}

}  // namespace strata::io
