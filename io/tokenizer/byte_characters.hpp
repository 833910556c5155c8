#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/byte_pairs.hpp"

namespace strata::io {

/// Far above any vocabulary; as JSON, such a file takes some 20 times its size in memory.
inline constexpr std::int64_t kMostTokenizerBytes = std::int64_t{64} << 20;

/// The token between documents in GPT-2's files.
inline constexpr const char* kGpt2Separator = "<|endoftext|>";

/// GPT-2's visible characters for bytes: printable Latin-1 characters for themselves, the others
/// become U+0100 and up.
class ByteCharacters {
 public:
  ByteCharacters();

  /// Nothing for a text with other characters.
  [[nodiscard]] std::optional<std::string> bytes_of(std::string_view text) const;
  [[nodiscard]] std::string text_of(std::string_view bytes) const;

 private:
  std::unordered_map<char32_t, char> bytes_;
  std::vector<std::string> characters_;  ///< by byte
};

/// Calls `function` with each line and its number; line ends are removed.
template <typename Function>
void for_each_line(std::string_view text, Function&& function) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    function(number, line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// Throws: Error(kData) that begins with the path where one of the 256 bytes is no token.
void require_bytes(const std::vector<std::string>& tokens, const std::filesystem::path& path);

}  // namespace strata::io
