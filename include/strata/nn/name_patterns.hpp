#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata::nn {

/// Patterns of parameter names with the wildcards of a shell: * for any text, ? for one character,
/// [...] for one of several.
class NamePatterns {
 public:
  NamePatterns() = default;
  /// From patterns with commas between them, as in "embedding.*, *.bias".
  explicit NamePatterns(std::string_view text);

  [[nodiscard]] bool empty() const { return patterns_.empty(); }
  /// Whether any of the patterns matches the whole name.
  [[nodiscard]] bool matches(const std::string& name) const;
  /// The patterns with commas between them.
  [[nodiscard]] std::string text() const;
  /// Checks that each pattern matches one of the names.
  /// Throws: Error(kUsage) that names `setting`, the pattern and the name nearest to it.
  void require_matches(std::string_view setting, std::span<const std::string> names) const;

 private:
  std::vector<std::string> patterns_;
};

}  // namespace strata::nn
