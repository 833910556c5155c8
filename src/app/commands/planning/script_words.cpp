#include "commands/planning/script_words.hpp"

#include <algorithm>
#include <string_view>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

namespace strata::app {
namespace {

/// What neither shells nor schedulers give a meaning.
bool is_plain(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  return !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
}

}  // namespace

void require_one_line(const std::string& text) {
  if (std::ranges::any_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7F; })) {
    fail(ExitCode::kUsage,
         "\"{}\" has a control character, which would end its line of a job script; leave it out",
         printable(text));
  }
}

std::string shell_quoted(const std::string& word) {
  require_one_line(word);
  if (is_plain(word)) {
    return word;
  }
  std::string quoted = "'";
  for (const char letter : word) {
    quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  }
  return quoted + "'";
}

std::string directive_word(Scheduler scheduler, const std::string& word) {
  require_one_line(word);
  if (is_plain(word)) {
    return word;
  }
  if (scheduler == Scheduler::kPbs) {
    const char quote = word.find('"') == std::string::npos ? '"' : '\'';
    if (word.find(quote) != std::string::npos) {
      fail(ExitCode::kUsage, "PBS cannot read {} in a job script, because it has both quotes",
           printable(word));
    }
    return quote + word + quote;
  }
  std::string quoted = "\"";
  for (const char letter : word) {
    quoted += (letter == '"' || letter == '\\' ? "\\" : "") + std::string(1, letter);
  }
  return quoted + '"';
}

}  // namespace strata::app
