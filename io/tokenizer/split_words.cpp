#include "tokenizer/split_words.hpp"

#include <algorithm>
#include <array>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

namespace strata::io {
namespace {

constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE |
                                   PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT |
                                   PCRE2_NO_AUTO_POSSESS;  // steps are counted

constexpr std::size_t kShown = 40;  // bytes of a text in messages
constexpr std::size_t kWindow = 4096;
constexpr std::int64_t kAgain = 64;  // times that each byte may be read on average

/// The steps that a match may take.
std::uint32_t steps_for(std::size_t bytes) {
  constexpr std::uint32_t kSteps = 100'000;
  constexpr std::uint32_t kPerByte = 16;
  constexpr std::size_t kMostCounted = std::size_t{1} << 27U;
  return kSteps + kPerByte * static_cast<std::uint32_t>(std::min(bytes, kMostCounted));
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

/// The compiled expression, or null with an error's code and place.
pcre2_code* compiled(std::string_view text, int& error, std::size_t& place) {
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  require(context != nullptr, "PCRE2 gives no context");
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code* code = pcre2_compile(units(text), text.size(), kOptions, &error, &place, context);
  pcre2_compile_context_free(context);
  return code;
}

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// Rewrites an expression of Oniguruma for PCRE2.
class Translator {
 public:
  explicit Translator(std::string_view text) : text_(text) {}

  std::string translated() {
    while (at_ < text_.size()) {
      const char first = text_[at_];
      if (first == '\\') {
        escape();
      } else if (sets_ > 0) {
        in_set(first);
      } else {
        outside(first);
      }
    }
    return std::move(out_);
  }

  [[nodiscard]] bool has_line_start() const { return has_line_start_; }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail(ExitCode::kData,
         "the expression {} holds {}, which libraries of regular expressions read differently",
         printable(text_), printable(what));
  }

  [[nodiscard]] std::string_view rest() const { return text_.substr(at_); }
  /// Up to the next }, which is included.
  [[nodiscard]] std::string_view braced() const {
    const std::size_t close = rest().find('}');
    if (close == std::string_view::npos) {
      refuse(rest().substr(0, 3));
    }
    return rest().substr(0, close + 1);
  }
  void copy(std::size_t bytes) {
    out_ += rest().substr(0, bytes);
    at_ += bytes;
  }

  void escape() {
    constexpr std::string_view kAlike = "dDnrtf";
    const std::string_view escape = rest().substr(0, 2);
    const char letter = escape.size() == 2 ? escape[1] : '\0';
    const auto byte = static_cast<unsigned char>(letter);
    const bool named = (byte | 0x20U) >= 'a' && (byte | 0x20U) <= 'z';
    if (letter == 's' || letter == 'S') {
      out_ += letter == 's' ? "\\p{wspace}" : "\\P{wspace}";
      at_ += 2;
    } else if ((letter | 0x20) == 'p' && rest().substr(2).starts_with('{')) {
      property();
    } else if (letter == 'x' && rest().substr(2).starts_with('{')) {
      copy(braced().size());
    } else if ((named && kAlike.find(letter) == std::string_view::npos) ||
               (letter >= '0' && letter <= '9')) {
      refuse(escape);
    } else {
      copy(escape.size());
    }
  }

  // A script's name alone would be its extensions too.
  void property() {
    const std::string_view all = braced();
    const std::string script = std::string(all.substr(0, 3)) + "sc:" + std::string(all.substr(3));
    if (all.substr(3).starts_with('^')) {
      refuse(all);
    }
    int error = 0;
    std::size_t place = 0;
    pcre2_code* code = all.size() > 6 ? compiled(script, error, place) : nullptr;
    out_ += code != nullptr ? script : all;
    pcre2_code_free(code);
    at_ += all.size();
  }

  // A set within a set adds its members.
  void in_set(char first) {
    if (first == '[') {
      if (rest().starts_with("[^") || rest().starts_with("[:")) {
        refuse(rest().substr(0, 2));
      }
      ++sets_;
      ++at_;
    } else if (first == ']' && --sets_ > 0) {
      ++at_;
    } else if (rest().starts_with("&&")) {
      refuse("&&");
    } else {
      copy(1);
    }
  }

  void outside(char first) {
    if (first == '[') {
      sets_ = 1;
      copy(rest().starts_with("[^") ? 2 : 1);
      if (rest().starts_with(']')) {
        copy(1);
      }
    } else if (first == '{') {
      quantifier();
    } else if (rest().starts_with("(?") || rest().starts_with("(*")) {
      constexpr std::array<std::string_view, 8> kGroups{"(?:",  "(?=",  "(?!",  "(?>",
                                                        "(?<=", "(?<!", "(?i:", "(?-i:"};
      const auto* const group = std::ranges::find_if(
          kGroups, [&](std::string_view begin) { return rest().starts_with(begin); });
      const bool whole = at_ == 0 && rest().starts_with("(?i)");
      if (group == kGroups.end() && !whole) {
        refuse(rest().substr(0, 3));
      }
      copy(whole ? 4 : group->size());
    } else {
      has_line_start_ |= first == '^';
      copy(1);
    }
  }

  void quantifier() {
    const std::string_view all = braced();
    if (all.find_first_not_of("{0123456789,}") == std::string_view::npos) {
      const std::string_view after = rest().substr(all.size());
      const bool lazy = after.starts_with('?') && all.find(',') == std::string_view::npos;
      if (all.starts_with("{,") || after.starts_with('+') || lazy) {
        refuse(rest().substr(0, all.size() + 1));
      }
      copy(all.size());
    } else {
      copy(1);
    }
  }

  std::string_view text_;
  std::string out_;
  std::size_t at_ = 0;
  int sets_ = 0;  // that are open
  bool has_line_start_ = false;
};

}  // namespace

Expression::Expression(const std::string& text) : text_(text) {
  constexpr std::size_t kMostBytes = 16 * 1024;
  if (text.size() > kMostBytes) {
    fail(ExitCode::kData, "the expression {} has {} bytes; at most {} were expected",
         printable(text, 60), text.size(), kMostBytes);
  }
  Translator translator(text);
  const std::string translated = translator.translated();
  int error = 0;
  std::size_t place = 0;
  code_.reset(compiled(translated, error, place));
  if (code_ == nullptr) {
    fail(ExitCode::kData, "the expression {} cannot be compiled: {} after {}", printable(text),
         message_of(error), quoted_text(translated.substr(0, place)));
  }
  std::uint32_t lookbehind = 0;
  pcre2_pattern_info(code_.get(), PCRE2_INFO_MAXLOOKBEHIND, &lookbehind);
  looks_back_ = lookbehind > 0 || translator.has_line_start();
  is_compiled_for_machine_ =
      pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
}

void Expression::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

Search::Search(const Expression& expression)
    : expression_(&expression),
      stack_(pcre2_jit_stack_create(std::size_t{32} << 10U, std::size_t{4} << 20U, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      data_(pcre2_match_data_create(1, nullptr)) {
  require(stack_ && context_ && data_, "PCRE2 gives no memory");
  constexpr std::uint32_t kMostKibibytes = 64 * 1024;
  pcre2_set_heap_limit(context_.get(), kMostKibibytes);
  pcre2_set_match_limit(context_.get(), steps_for(kWindow));
  place_ = pcre2_get_ovector_pointer(data_.get());
  pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

void Search::Free::operator()(pcre2_real_jit_stack_8* stack) const {
  pcre2_jit_stack_free(stack);
}
void Search::Free::operator()(pcre2_real_match_context_8* context) const {
  pcre2_match_context_free(context);
}
void Search::Free::operator()(pcre2_real_match_data_8* data) const {
  pcre2_match_data_free(data);
}

// Matches in a window. Where a match reaches its end, the window grows for that begin alone, and
// PCRE2 interprets, which counts more steps than compiled code does. The time for an expression
// that reads far and finds nothing is bounded by the bytes of such windows.
Search::Match Search::find(std::string_view text, std::size_t from, End end) {
  std::size_t window = kWindow;
  while (true) {
    std::size_t size = std::min(text.size(), from + window);
    while (size < text.size() && continues_character(text[size])) {
      --size;
    }
    const bool has_grown = window > kWindow;
    const bool is_whole = size == text.size() && end != End::kNotYet;
    const int result = match(text.substr(0, size), from, is_whole ? 0U : PCRE2_PARTIAL_HARD,
                             has_grown ? Begins::kHere : Begins::kAnywhere);
    const bool is_empty_at_end = result >= 0 && place_[0] == size && !is_whole;
    if (result >= 0 && !is_empty_at_end) {
      credit_bytes_ += kAgain * static_cast<std::int64_t>(place_[1] - from);
      return {place_[0], place_[1], true};
    }
    std::size_t open = size;  // where a match may begin
    if (result == PCRE2_ERROR_PARTIAL) {
      open = place_[0];
    } else if (result == PCRE2_ERROR_NOMATCH && has_grown) {
      open = from + first_character(text.substr(from)).bytes;
    } else if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
      fail(ExitCode::kData, "the expression {} takes too many steps on the text {} ({})",
           printable(expression_->text()), quoted_text(text.substr(from, kShown)),
           message_of(result));
    }
    if (size == text.size() && (result == PCRE2_ERROR_PARTIAL || !has_grown)) {
      return {open, open, false};
    }
    window = open > from ? kWindow : 2 * window;
    credit_bytes_ += kAgain * static_cast<std::int64_t>(open - from) -
                     (open > from ? 0 : static_cast<std::int64_t>(window));
    if (credit_bytes_ < 0) {
      fail(ExitCode::kData, "the expression {} reads the text {} again and again",
           printable(expression_->text()), quoted_text(text.substr(from, kShown)));
    }
    from = open;
  }
}

int Search::match(std::string_view text, std::size_t from, std::uint32_t options, Begins begins) {
  if (begins == Begins::kAnywhere) {
    return expression_->is_compiled_for_machine()
               ? pcre2_jit_match(expression_->code(), units(text), text.size(), from, options,
                                 data_.get(), context_.get())
               : pcre2_match(expression_->code(), units(text), text.size(), from,
                             options | PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  }
  pcre2_set_offset_limit(context_.get(), from);
  pcre2_set_match_limit(context_.get(), steps_for(text.size() - from));
  const int result =
      pcre2_match(expression_->code(), units(text), text.size(), from,
                  options | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data_.get(), context_.get());
  pcre2_set_offset_limit(context_.get(), PCRE2_UNSET);
  pcre2_set_match_limit(context_.get(), steps_for(kWindow));
  return result;
}

}  // namespace strata::io
