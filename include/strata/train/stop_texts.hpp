#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace strata::train {

/// Passes a generated text on until it ends with one of the stop texts, which may span several
/// tokens. Bytes that may begin a stop text wait for those after them.
class StopTexts {
 public:
  /// Pre: no text is empty.
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  /// Appends to the text; returns the bytes that no stop text can begin with any more. Of several
  /// stop texts that end at one byte the longest counts.
  [[nodiscard]] std::string take(std::string_view text);
  /// Whether a stop text was reached; what follows it is left out.
  [[nodiscard]] bool reached() const { return reached_; }
  /// The bytes that still wait, at the end of a text; the next text begins.
  [[nodiscard]] std::string finish();

 private:
  std::vector<std::string> texts_;
  std::string waiting_;
  bool reached_ = false;
};

}  // namespace strata::train
