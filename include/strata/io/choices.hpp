#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/io/dataset.hpp"

namespace strata::io {

/// What becomes of a question with more tokens than a sample of the model has.
enum class LongQuestions {
  kRefused,
  kCutLeft  ///< loses the first tokens of its context
};
constexpr auto enum_names(LongQuestions) {
  return names_in_order("refuse", "left");
}

/// A question with several choices.
struct Question {
  std::int64_t line = 0;  ///< of its file, from 1
  /// Of the text of each choice, without the blanks around it.
  std::vector<std::int64_t> bytes;
  std::int64_t answer = 0;  ///< the index of the right choice
};

/// Questions, and their texts as a data set.
struct Choices {
  std::vector<Question> questions;
  /// A sample for each choice of each question, in order: the context's tokens and then the
  /// choice's, which alone count as targets.
  Dataset data;
};

/// Reads a file with an object in each line: "context", a text, "choices", at least two texts, and
/// "answer", an index. `model`: the data that a language model was trained on, with its tokenizer
/// and the tokens of a sample. The context begins as a document does (begin_document()); blanks at
/// its end belong to the choice. Where the tokens of context and choice together begin with those
/// of the context, the others are the choice's; else both are encoded apart. Throws: Error(kData)
/// naming the line that is malformed or too long, or where the model has no tokenizer. Source: Gao
/// et al., "The language model evaluation harness", 10.5281/zenodo.12608602.
[[nodiscard]] Choices read_choices(const std::filesystem::path& path, const DatasetInfo& model,
                                   LongQuestions long_questions);

}  // namespace strata::io
