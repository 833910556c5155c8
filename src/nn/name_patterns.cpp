#include "strata/nn/name_patterns.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

namespace strata::nn {
namespace {

bool is_match(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

}  // namespace

NamePatterns::NamePatterns(std::string_view text) : patterns_(split_words(text, ", \t")) {}

bool NamePatterns::matches(const std::string& name) const {
  return std::ranges::any_of(patterns_,
                             [&](const std::string& pattern) { return is_match(pattern, name); });
}

std::string NamePatterns::text() const {
  return fmt::format("{}", fmt::join(patterns_, ","));
}

void NamePatterns::require_matches(std::string_view setting,
                                   std::span<const std::string> names) const {
  for (const std::string& pattern : patterns_) {
    if (std::ranges::any_of(names,
                            [&](const std::string& name) { return is_match(pattern, name); })) {
      continue;
    }
    std::string plain = pattern;
    std::erase_if(plain, [](char c) { return c == '*' || c == '?'; });
    fail(ExitCode::kUsage,
         "{}: no parameter is called \"{}\"; the nearest is \"{}\". Give names, or patterns with * "
         "and ?, as in \"blocks.0.*\"",
         setting, pattern, nearest(plain, names));
  }
}

}  // namespace strata::nn
