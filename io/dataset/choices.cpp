#include "strata/io/choices.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/io/tokenizer.hpp"

#include "files/json_lines.hpp"

namespace strata::io {
namespace {

/// Makes documents of questions.
class ChoiceEncoder {
 public:
  ChoiceEncoder(const DatasetInfo& model, LongQuestions long_questions)
      : tokenizer_(Tokenizer::of(model)),
        most_(model.input_shape[0] + 1),
        long_questions_(long_questions) {}

  /// Throws: Error(kData), without the line.
  [[nodiscard]] Question add(const nlohmann::json& object) {
    const auto context = object.find("context");
    const auto choices = object.find("choices");
    const auto answer = object.find("answer");
    if (context == object.end() || !context->is_string()) {
      fail(ExitCode::kData, "there is no text \"context\"");
    }
    if (choices == object.end() || !choices->is_array() || choices->size() < 2) {
      fail(ExitCode::kData, "there is no list \"choices\" of at least two texts");
    }
    if (answer == object.end() || !answer->is_number_integer()) {
      fail(ExitCode::kData, "there is no whole number \"answer\", the index of the right choice");
    }
    const std::int64_t count = std::ssize(*choices);
    Question question{.answer = answer->get<std::int64_t>()};
    if (question.answer < 0 || question.answer >= count) {
      fail(ExitCode::kData, "\"answer\" is {}; give the index of one of the {} choices, 0 to {}",
           answer->dump(), count, count - 1);
    }
    const std::string& text = context->get_ref<const std::string&>();
    const std::size_t end = text.find_last_not_of(" \t\r\n") + 1;  // 0 where there are blanks alone
    const std::string_view before = std::string_view(text).substr(0, end);
    const Ids begin = begin_document(tokenizer_, tokenizer_.encode(before));
    if (begin.empty()) {
      fail(ExitCode::kData,
           "the context is empty, and the tokenizer has no token that begins a text; give the "
           "question a context");
    }
    for (const nlohmann::json& choice : *choices) {
      const std::int64_t number = std::ssize(question.bytes);
      const std::string* const words = choice.get_ptr<const std::string*>();
      if (words == nullptr || trimmed(*words).empty()) {
        fail(ExitCode::kData, "choice {} is {}", number,
             words == nullptr ? "no text" : "empty; each needs a text");
      }
      question.bytes.push_back(std::ssize(trimmed(*words)));
      add_document(begin, before, text.substr(end) + *words, number);
    }
    return question;
  }

  [[nodiscard]] Dataset dataset(DatasetInfo like) {
    return Dataset::of_tokens(std::move(tokens_), std::move(documents_), std::move(like));
  }

 private:
  using Ids = std::vector<std::int64_t>;

  /// The tokens of the choice, behind those of the context.
  [[nodiscard]] Ids continuation(const Ids& begin, std::string_view context,
                                 const std::string& choice) const {
    Ids both = begin_document(tokenizer_, tokenizer_.encode(std::string(context) + choice));
    if (context.empty() || std::ranges::mismatch(begin, both).in1 != begin.end()) {
      return tokenizer_.encode(choice);
    }
    both.erase(both.begin(), both.begin() + std::ssize(begin));
    return both;
  }

  void add_document(const Ids& begin, std::string_view context, const std::string& choice,
                    std::int64_t number) {
    const Ids ids = continuation(begin, context, choice);
    if (ids.empty()) {
      fail(ExitCode::kData, "choice {} gives no token behind the context's", number);
    }
    const std::int64_t tokens = std::ssize(begin) + std::ssize(ids);
    // The first token of a sample is no target.
    if (tokens > most_ &&
        (long_questions_ == LongQuestions::kRefused || std::ssize(ids) >= most_)) {
      fail(ExitCode::kData, "context and choice {} have {} tokens, the model takes {}; {}", number,
           tokens, most_,
           std::ssize(ids) >= most_ ? "the choice alone is too long, so leave the question out"
                                    : "--cut=left cuts contexts at their begin");
    }
    tokens_.insert(tokens_.end(), begin.begin() + std::max<std::int64_t>(0, tokens - most_),
                   begin.end());
    documents_.counted.push_back(std::ssize(tokens_));
    tokens_.insert(tokens_.end(), ids.begin(), ids.end());
    documents_.counted.push_back(std::ssize(tokens_));
    documents_.ends.push_back(std::ssize(tokens_));
  }

  Tokenizer tokenizer_;
  std::int64_t most_;  ///< tokens of a document
  LongQuestions long_questions_;
  std::vector<std::uint32_t> tokens_;
  Documents documents_;
};

}  // namespace

Choices read_choices(const std::filesystem::path& path, const DatasetInfo& model,
                     LongQuestions long_questions) {
  ChoiceEncoder encoder(model, long_questions);
  std::vector<Question> questions;
  JsonLines lines(path);
  while (lines.next()) {
    try {
      questions.push_back(encoder.add(lines.object()));
      questions.back().line = lines.line();
    } catch (const Error& error) {
      fail(error.code(), "{}:{}: {}", path.string(), lines.line(), error.what());
    }
  }
  if (questions.empty()) {
    fail(ExitCode::kData, "{} is empty, a question per line was expected", path.string());
  }
  DatasetInfo like = model;
  like.path = path;
  Dataset data = encoder.dataset(std::move(like));
  data.set_context(model.input_shape[0], Packing::kDocuments);
  return {std::move(questions), std::move(data)};
}

}  // namespace strata::io
