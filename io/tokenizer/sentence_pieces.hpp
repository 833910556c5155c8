#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace strata::io {

/// A model of SentencePiece (byte pairs or unigram), as the library encodes with it.
/// Source: Kudo, Richardson, "SentencePiece: a simple and language independent subword tokenizer
/// and detokenizer for neural text processing", EMNLP 2018.
class SentencePieces {
 public:
  /// `name` is for messages.
  /// Throws: Error(kData) where the library refuses the model, Error(kUsage) in a build without it.
  SentencePieces(std::string model, const std::string& name);
  ~SentencePieces();
  SentencePieces(const SentencePieces&) = delete;
  SentencePieces& operator=(const SentencePieces&) = delete;

  /// The bytes of the model's file.
  [[nodiscard]] const std::string& model() const { return model_; }
  [[nodiscard]] std::int64_t vocabulary() const;
  /// The id of the end of a sentence, else of its begin; -1 without either.
  [[nodiscard]] std::int64_t separator() const;
  /// The ids of a sentence's begin and end; -1 where the model has none.
  [[nodiscard]] std::int64_t begin() const;
  [[nodiscard]] std::int64_t end() const;
  /// Ids of control symbols, which stand for no text, in ascending order.
  [[nodiscard]] std::vector<std::uint32_t> control_symbols() const;
  /// A piece as the model writes it; and the id of one, -1 for a text that is none.
  [[nodiscard]] std::string piece(std::uint32_t id) const;
  [[nodiscard]] std::int64_t id_of(const std::string& piece) const;
  /// The text of a piece; empty for a control symbol.
  [[nodiscard]] std::string text_of(std::uint32_t id) const;
  /// Whether the model puts a space before a text.
  [[nodiscard]] bool puts_space_before() const { return puts_space_before_; }

  /// Appends the ids of a text's pieces. Pre: whole UTF-8 characters.
  void encode(std::string_view text, std::vector<std::uint32_t>& ids) const;
  /// A space some KiB from the start of a text at which it can be cut, the space left out: the two
  /// parts have the pieces of the whole. npos where there is none.
  [[nodiscard]] std::size_t cut_of(std::string_view text) const;

 private:
  struct Library;

  /// Whether no piece holds a space after another character.
  [[nodiscard]] bool pieces_end_at_spaces() const;

  std::string model_;
  std::unique_ptr<const Library> library_;
  bool puts_space_before_ = false;
  bool can_cut_ = false;
};

}  // namespace strata::io
