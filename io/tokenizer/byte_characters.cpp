#include "tokenizer/byte_characters.hpp"

#include <bitset>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

namespace strata::io {

ByteCharacters::ByteCharacters() {
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
                        (byte >= 0xAE && byte <= 0xFF);
    const char32_t character = itself ? static_cast<char32_t>(byte) : next++;
    bytes_.emplace(character, static_cast<char>(byte));
    append_utf8(character, characters_.emplace_back());
  }
}

std::optional<std::string> ByteCharacters::bytes_of(std::string_view text) const {
  if (utf8_prefix(text).rest != Utf8Prefix::Rest::kNothing) {
    return std::nullopt;
  }
  std::string bytes;
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    const auto byte = bytes_.find(character.value);
    if (byte == bytes_.end()) {
      return std::nullopt;
    }
    bytes += byte->second;
    text.remove_prefix(character.bytes);
  }
  return bytes;
}

std::string ByteCharacters::text_of(std::string_view bytes) const {
  std::string text;
  for (const char byte : bytes) {
    text += characters_[static_cast<unsigned char>(byte)];
  }
  return text;
}

void require_bytes(const std::vector<std::string>& tokens, const std::filesystem::path& path) {
  std::bitset<256> found;
  for (const std::string& token : tokens) {
    if (token.size() == 1) {
      found.set(static_cast<unsigned char>(token[0]));
    }
  }
  for (std::size_t byte = 0; byte < found.size(); ++byte) {
    if (!found[byte]) {
      fail(ExitCode::kData,
           "{} has no token for the byte {}; a vocabulary of byte pairs has all 256 bytes",
           path.string(), byte);
    }
  }
}

}  // namespace strata::io
