#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace strata::io {

/// A part of a rendered dialogue.
struct ChatSegment {
  /// What the text stands for: what a tokenizer makes of it, or the special token with this
  /// spelling.
  enum class Kind { kText, kToken } kind = Kind::kText;
  std::string text;
  /// Whether its tokens are learned.
  bool counts = false;
};
using Dialogue = std::vector<ChatSegment>;

/// The texts around the messages of one role.
struct ChatRole {
  std::string_view role;
  /// Tokens stand between ^ and $, as in "^<|im_start|>$user\n".
  std::string_view before;
  /// Ends the message, and is learned with it.
  std::string_view end;
  std::string_view after;
};

/// How a family of models writes dialogues.
struct ChatTemplate {
  std::string_view name;
  std::string_view begin;
  std::vector<ChatRole> roles;
  /// Whether white space around a message is left out.
  bool trims = false;
};

[[nodiscard]] const std::vector<ChatTemplate>& chat_templates();
/// The built-in template of a name. Throws: Error(kUsage) that ends with `further`, other values
/// that --template may have.
[[nodiscard]] const ChatTemplate& chat_template(std::string_view name,
                                                std::string_view further = "");

/// Whether an object has a member. Exports of tables have all keys, those without a value as null.
[[nodiscard]] bool has_value(const nlohmann::json& object, const char* key);

/// Renders the messages of an object: "messages" of "role" and "content", or "conversations" of
/// "from" and "value". Messages of `learned` roles count, with what ends them.
/// Throws: Error(kData) that names the message, where its role is not one of the template's, or its
/// content no text or empty, or it calls tools.
[[nodiscard]] Dialogue render(const ChatTemplate& chat, const nlohmann::json& object,
                              const std::vector<std::string>& learned);

/// The same, then the begin of the assistant's answer, in whose place a letter and what ends it
/// stand, and count alone. Throws: Error(kData) as render(), and where the last message is the
/// assistant's.
[[nodiscard]] Dialogue render_prompt(const ChatTemplate& chat, const nlohmann::json& object);

/// The two answers of an object, each a dialogue of the same prompt and an answer: the "chosen" and
/// the "rejected" one. An answer is a text, that of the assistant, or a list of messages, and
/// without an assistant's message at its begin the whole dialogue; what "prompt" is, a text of the
/// user or a list of messages, precedes it. Without a template each is a list of segments
/// (rendered()). What both have at their begin does not count. Throws: Error(kData) as render();
/// where nothing of an answer counts.
[[nodiscard]] std::vector<Dialogue> render_pair(const ChatTemplate* chat,
                                                const nlohmann::json& object,
                                                const std::vector<std::string>& learned);

/// The "segments" of an object, or another member, a rendered dialogue: each has a "text", in which
/// the spellings of special tokens are these tokens, and a "label", whether it counts. Throws:
/// Error(kData) that names the segment.
[[nodiscard]] Dialogue rendered(const nlohmann::json& object, const char* key = "segments");

}  // namespace strata::io
