#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "strata/io/documents.hpp"
#include "strata/io/import.hpp"
#include "strata/io/tokenizer.hpp"

#include "files/json_lines.hpp"
#include "import/chat_template.hpp"
#include "tokenizer/text_encoder.hpp"

namespace strata::io {

/// Appends a run of tokens that count; one that goes on becomes longer.
void add_run(std::vector<std::int64_t>& runs, std::int64_t begin, std::int64_t end);

/// What becomes of a line.
struct EncodedLine {
  std::string text;  ///< of all its dialogues
  std::vector<std::uint32_t> ids;
  Documents documents;
  bool is_cut = false;
  bool is_left_out = false;  ///< for its length
  std::exception_ptr error;  ///< of encoding, which counts where the line is imported
};

/// Throws: Error(kData) where the tokenizer lacks a token of the template.
void require_tokens(const ChatTemplate& chat, const Tokenizer& tokenizer);

/// Makes tokens of dialogues, for one thread.
class ChatEncoder {
 public:
  /// `chat`: null where dialogues are rendered. Pre: tokenizer and template outlive this.
  ChatEncoder(const ImportOptions& options, const Tokenizer& tokenizer, const ChatTemplate* chat);

  /// Throws: Error(kData) that begins with `place`.
  [[nodiscard]] EncodedLine encode(const nlohmann::json& object, const LinePlace& place) const;
  /// Appends a document. Throws: Error(kData).
  void add(const Dialogue& dialogue, EncodedLine& line) const;

 private:
  using Ids = std::vector<std::uint32_t>;

  /// The dialogue of a line, or the two of a pair.
  [[nodiscard]] std::vector<Dialogue> dialogues_of(const nlohmann::json& object) const;
  [[nodiscard]] EncodedLine encoded_line(const std::vector<Dialogue>& dialogues,
                                         const LinePlace& place) const;
  /// Refuses an answer of a pair without a target: a first token is none.
  void require_target(const Dialogue& dialogue, const EncodedLine& line) const;
  /// Cuts a dialogue of too many tokens, or leaves it, or the pair, out. Returns: what it did.
  /// Throws: Error(kData) where it is to be refused.
  [[nodiscard]] TooLong shorten(std::vector<Dialogue>& dialogues, std::int64_t tokens) const;
  /// Calls act(segments, encoder, continues) for the stretches that are one text to the tokenizer.
  template <typename Function>
  void for_each_text(std::span<const ChatSegment> dialogue, const Function& act) const;
  [[nodiscard]] std::int64_t tokens_of(std::span<const ChatSegment> dialogue) const;
  [[nodiscard]] bool spells_token(const std::string& text) const;
  /// Texts are one text to the tokenizer. A token of two texts counts where one of them does.
  void add_texts(std::span<const ChatSegment> texts, TextEncoder& encoder, Continues continues,
                 EncodedLine& line) const;
  /// The end of each token in the text, in bytes; empty where the tokenizer changes the text.
  [[nodiscard]] std::vector<std::size_t> ends_of(const Ids& ids, std::string_view text) const;

  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_;
  bool pairs_;
  std::vector<std::string> roles_;
  DocumentRules rules_;
  Markers markers_;
  std::unique_ptr<TextEncoder> recognising_;
  std::unique_ptr<TextEncoder> plain_;
};

}  // namespace strata::io
