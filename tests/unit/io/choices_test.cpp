#include "strata/io/choices.hpp"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/import.hpp"

#include "text_files.hpp"

namespace strata::io::choices_test {
namespace {

using test::error_of;
using test::small_pairs;
using test::TemporaryDirectory;
using test::text_options;
using test::tokens_of;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ChoicesTest : public testing::Test {
 protected:
  /// Imports a text, which gives a model its tokenizer.
  DatasetInfo model(TokenizerKind tokenizer, std::int64_t context = 8) {
    write_pairs(directory_, small_pairs());
    ImportOptions options =
        text_options(directory_, tokenizer, {"the aardvark and the hare"}, "1.0");
    options.existing = Existing::kReplace;
    Dataset data = Dataset::open(import_dataset(options).train);
    data.set_context(context);
    return data.info();
  }
  Choices read(const std::string& lines, const DatasetInfo& model,
               LongQuestions long_questions = LongQuestions::kRefused) {
    write_file(directory_ / "q.jsonl", lines);
    return read_choices(directory_ / "q.jsonl", model, long_questions);
  }

  TemporaryDirectory directory_;
};

TEST_F(ChoicesTest, ChoicesCountBehindTheirContext) {
  const Choices read = this->read(R"({"context": "a", "choices": [" the", "b"], "answer": 1}

{"context": "a ", "choices": ["the", "h\u00e9"], "answer": 0, "id": 7}
{"context": "t", "choices": ["he", " the "], "answer": 0}
{"context": "", "choices": ["the", "<|endoftext|>h"], "answer": 0}
)",
                                  model(TokenizerKind::kGpt2));
  ASSERT_EQ(read.questions.size(), 4);
  EXPECT_EQ(read.questions[1].line, 3);
  EXPECT_EQ(read.questions[0].answer, 1);
  EXPECT_THAT(read.questions[0].bytes, ElementsAre(3, 1));
  EXPECT_THAT(read.questions[1].bytes, ElementsAre(3, 3));
  EXPECT_THAT(read.questions[2].bytes, ElementsAre(2, 3));
  // The tokens of each document, and how many of them are the context's.
  const std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>> expected{
      {{'a', 258}, 1},  // " the"
      {{'a', 'b'}, 1},  //
      {{'a', 258}, 1},  // the blank belongs to the choice
      {{'a', ' ', 'h', 0xC3, 0xA9}, 1},
      {{'t', 'h', 'e'}, 1},  // "the" would be one token, so both are encoded apart
      {{'t', 258, ' '}, 1},  //
      {{260, 257}, 1},       // no context: the separator
      {{260, 260, 'h'}, 1}};
  const Documents& documents = read.data.documents();
  const std::vector<std::int64_t> tokens = tokens_of(read.data);
  ASSERT_EQ(documents.ends.size(), expected.size());
  ASSERT_EQ(read.data.info().samples, 8);
  for (std::int64_t d = 0; d < std::ssize(expected); ++d) {
    SCOPED_TRACE(d);
    const auto& [ids, context] = expected[static_cast<std::size_t>(d)];
    EXPECT_EQ(std::vector(tokens.begin() + documents.begin(d), tokens.begin() + documents.end(d)),
              ids);
    EXPECT_THAT(read.data.pieces(d), ElementsAre(Piece{documents.begin(d), std::ssize(ids) - 1}));
    for (std::int64_t i = 0; i < std::ssize(ids); ++i) {
      EXPECT_EQ(documents.counts(documents.begin(d) + i), i >= context);
    }
  }
}

TEST_F(ChoicesTest, LongContextsAreCutAtTheLeft) {
  // 9 tokens have 8 inputs.
  const std::string lines =
      R"({"context": "0123456789", "choices": ["xy", "abcdefgh"], "answer": 0})";
  const DatasetInfo bytes = model(TokenizerKind::kBytes);
  EXPECT_THAT(
      error_of([&] { read(lines, bytes); }),
      AllOf(HasSubstr("q.jsonl:1: "), HasSubstr("choice 0 have 12 tokens, the model takes 9"),
            HasSubstr("--cut=left")));
  const Choices read = this->read(lines, bytes, LongQuestions::kCutLeft);
  const std::vector<std::int64_t> tokens = tokens_of(read.data);
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), "3456789xy9abcdefgh");
  EXPECT_THAT(read.data.documents().counted, ElementsAre(7, 9, 10, 18));
  EXPECT_THAT(error_of([&] {
                this->read(R"({"context": "0", "choices": ["a", "abcdefghi"], "answer": 0})", bytes,
                           LongQuestions::kCutLeft);
              }),
              HasSubstr("the choice alone is too long"));
}

TEST_F(ChoicesTest, BadLinesAreNamed) {
  const std::string good = R"({"context": "a", "choices": ["b", "c"], "answer": 0})";
  const DatasetInfo bytes = model(TokenizerKind::kBytes);
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[1]", "no JSON object"},
      {R"({"choices": ["b", "c"], "answer": 0})", "no text \"context\""},
      {R"({"context": 7, "choices": ["b", "c"], "answer": 0})", "no text \"context\""},
      {R"({"context": "a", "answer": 0})", "no list \"choices\""},
      {R"({"context": "a", "choices": "bc", "answer": 0})", "no list \"choices\""},
      {R"({"context": "a", "choices": ["b"], "answer": 0})", "at least two"},
      {R"({"context": "a", "choices": ["b", 3], "answer": 0})", "choice 1 is no text"},
      {R"({"context": "a", "choices": ["", "c"], "answer": 0})", "choice 0 is empty"},
      {R"({"context": "a", "choices": ["b", " \n"], "answer": 0})", "choice 1 is empty"},
      {R"({"context": "a", "choices": ["b", "c"]})", "no whole number \"answer\""},
      {R"({"context": "a", "choices": ["b", "c"], "answer": "b"})", "no whole number \"answer\""},
      {R"({"context": "a", "choices": ["b", "c"], "answer": 0.5})", "no whole number \"answer\""},
      {R"({"context": "a", "choices": ["b", "c"], "answer": 2})", "\"answer\" is 2; give"},
      {R"({"context": "a", "choices": ["b", "c"], "answer": -1})", "0 to 1"},
      {R"({"context": " \n", "choices": ["b", "c"], "answer": 0})", "the context is empty"}};
  for (const auto& [line, words] : cases) {
    SCOPED_TRACE(line);
    EXPECT_THAT(error_of([&] { read(good + "\n" + line + "\n", bytes); }),
                AllOf(HasSubstr("q.jsonl:2: "), HasSubstr(words)));
  }
  EXPECT_THAT(error_of([&] { read("\n", bytes); }), HasSubstr("q.jsonl is empty"));
  EXPECT_THAT(error_of([&] {
                read(R"({"context": "a", "choices": ["b", "Z"], "answer": 0})",
                     model(TokenizerKind::kChars));
              }),
              HasSubstr("q.jsonl:1: "));
  DatasetInfo unknown = bytes;
  unknown.tokenizer = TokenizerKind::kNone;
  EXPECT_THAT(error_of([&] { read(good, unknown); }), HasSubstr("tokenizer"));
}

}  // namespace
}  // namespace strata::io::choices_test
