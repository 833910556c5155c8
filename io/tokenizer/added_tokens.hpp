#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace strata::io {

/// A token that is found in a text before the text is split. The flags are Hugging Face's.
struct AddedToken {
  std::uint32_t id = 0;
  std::string text;
  bool special = true;       ///< Markers::kAsText leaves it to the text
  bool normalized = false;   ///< is found in normalized text
  bool single_word = false;  ///< only where no letter, digit or _ touches it
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< takes the white space after it

  /// Whether it changes nothing where special tokens are text.
  [[nodiscard]] bool is_plain() const { return special && !single_word && !lstrip && !rstrip; }
  friend bool operator==(const AddedToken&, const AddedToken&) = default;
};

/// The one of these tokens, which are by id, that has the id; null without one.
[[nodiscard]] const AddedToken* find_added(std::span<const AddedToken> tokens, std::size_t id);
[[nodiscard]] inline bool is_added(std::span<const AddedToken> tokens, std::size_t id) {
  return find_added(tokens, id) != nullptr;
}

/// A value of a JSON file on one line of a message.
[[nodiscard]] std::string shown(const nlohmann::json& value);

/// Tokens as the list added_tokens of a tokenizer.json.
[[nodiscard]] nlohmann::json added_tokens_json(std::span<const AddedToken> tokens);
/// The reverse, by id. Throws: Error(kData) that begins with `name` for a malformed list.
[[nodiscard]] std::vector<AddedToken> added_tokens_of(const nlohmann::json& list,
                                                      const std::string& name);

/// The object in a JSON file beside a tokenizer's; null where there is no such file.
/// Throws: Error(kData) for another content.
[[nodiscard]] nlohmann::json object_beside(const std::filesystem::path& file, const char* name);
/// The tokens in added_tokens.json and tokenizer_config.json beside a tokenizer's file, by id.
/// Throws: Error(kData) where one of them is malformed.
[[nodiscard]] std::vector<AddedToken> added_tokens_beside(const std::filesystem::path& file);

/// A vocabulary that tokens are added to.
struct AddedTo {
  std::string name;  ///< for messages
  std::int64_t ids = 0;
  /// The text of an id, empty where it is unused; and the id of a text, -1 where it has none.
  std::function<std::string(std::uint32_t)> text_of;
  std::function<std::int64_t(const std::string&)> id_of;
};

/// Adds tokens to `tokens`, which are by id.
/// Throws: Error(kData) where an id has another text, or a text another id.
void add_tokens(std::span<const AddedToken> more, const AddedTo& vocabulary,
                std::vector<AddedToken>& tokens);

/// The number of ids of a vocabulary of so many with added tokens, which are by id.
[[nodiscard]] std::int64_t ids_with(std::span<const AddedToken> tokens, std::int64_t ids);

}  // namespace strata::io
