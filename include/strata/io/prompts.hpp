#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/io/tokenizer.hpp"

namespace strata::io {

class ChatEncoder;
struct ChatTemplate;

/// The chat template that comes with a published model.
struct PublishedTemplate {
  std::string name;        ///< of the built-in template that writes the same; empty: of none
  std::string file;        ///< that holds it; empty: the model has none
  std::string difference;  ///< from the built-in template that is the most like it
};

/// Recognises the Jinja text in chat_template.jinja, chat_template.json or tokenizer_config.json,
/// whose texts are given by name, by everything that it can write and all that it asks about: its
/// tokens, the texts around messages, and names such as `tools`. A default system prompt alone may
/// differ. It is never guessed.
[[nodiscard]] PublishedTemplate published_template(const std::map<std::string, std::string>& files);
/// Of the files in a directory. Throws: Error(kData) where one cannot be read.
[[nodiscard]] PublishedTemplate published_template(const std::filesystem::path& directory);
/// Says that a template of a directory is not known, and how to render dialogues with it.
[[nodiscard]] std::string unknown_template_text(const PublishedTemplate& found,
                                                const std::string& directory);
/// A built-in template as a Jinja text, for other programs. Pre: the name is known.
[[nodiscard]] std::string jinja_text(const std::string& name);

/// Makes the tokens of prompts from texts and dialogues.
class PromptEncoder {
 public:
  /// `chat_template`: the name of a built-in template; empty: dialogues are refused.
  /// Pre: the tokenizer outlives this. Throws: Error(kUsage) for an unknown name; Error(kData)
  /// where the tokenizer lacks a token of the template.
  PromptEncoder(const Tokenizer& tokenizer, const std::string& chat_template);
  ~PromptEncoder();
  PromptEncoder(PromptEncoder&& other) noexcept;

  /// A text, after the tokens that the tokenizer puts before a document unless the text spells them
  /// out. Throws: Error(kData).
  [[nodiscard]] std::vector<std::int64_t> of_text(std::string_view text) const;
  /// A dialogue, as the import of dialogues takes it, up to where the assistant's answer begins:
  /// the tokens that the import does not count before those that it counts of an answer. The
  /// spellings of special tokens in messages are plain text. Throws: Error(kUsage) without a
  /// template; Error(kData) that names the message, and where the last message is the assistant's.
  [[nodiscard]] std::vector<std::int64_t> of_dialogue(const nlohmann::json& object) const;
  /// The token that ends an answer; -1 without a template.
  [[nodiscard]] std::int64_t answer_end() const { return answer_end_; }

 private:
  const Tokenizer& tokenizer_;
  const ChatTemplate* template_ = nullptr;
  std::unique_ptr<const ChatEncoder> encoder_;
  std::int64_t answer_end_ = -1;
};

/// A line of a file of prompts.
struct Prompt {
  nlohmann::json object;
  std::vector<std::int64_t> ids;
  std::string place;                     ///< as in "prompts.jsonl:7"
  Continues continues = Continues::kNo;  ///< whether the answer goes on from a text
};

/// The prompts of a file of JSON lines, each with a text as "prompt", or a dialogue.
/// Throws: Error that begins with file and line; Error(kData) for a file without prompts.
[[nodiscard]] std::vector<Prompt> read_prompts(const std::filesystem::path& path,
                                               const PromptEncoder& encoder);

}  // namespace strata::io
