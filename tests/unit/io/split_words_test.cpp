#include "tokenizer/split_words.hpp"

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text_files.hpp"

namespace strata::io::split_words_test {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The matches of an expression; those of the ones in the tests cover a text.
std::vector<std::string> words(std::string_view text,
                               std::string_view expression = kGpt2Expression) {
  const Expression compiled{std::string(expression)};
  Search search(compiled);
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const Search::Match match = search.find(text, at, End::kReached);
    words.emplace_back(text.substr(match.begin, match.end - match.begin));
    at = match.end;
  }
  return words;
}

TEST(Gpt2Words, LettersNumbersAndOthersStandApart) {
  EXPECT_THAT(words("ab12!? ab 12 !?"), ElementsAre("ab", "12", "!?", " ab", " 12", " !?"));
  EXPECT_THAT(words("Größe ½ⅷ٣ 猫です"), ElementsAre("Größe", " ½ⅷ٣", " 猫です"));
  EXPECT_THAT(words("a_b-c"), ElementsAre("a", "_", "b", "-", "c"));
  // A combining accent is a mark, no letter; so are emoji's joiners.
  EXPECT_THAT(words("e\u0301x 👨\u200D👩"), ElementsAre("e", "\u0301", "x", " 👨\u200D👩"));
}

TEST(Gpt2Words, ContractionsAreWordsInLowerCaseOnly) {
  EXPECT_THAT(words("I'm we've you're he'll it's don't I'd"),
              ElementsAre("I", "'m", " we", "'ve", " you", "'re", " he", "'ll", " it", "'s", " don",
                          "'t", " I", "'d"));
  EXPECT_THAT(words("I'M 'sun 'x '"), ElementsAre("I", "'", "M", " '", "sun", " '", "x", " '"));
  EXPECT_THAT(words("'s''s'lx'l"), ElementsAre("'s", "''", "s", "'", "lx", "'", "l"));
}

TEST(Gpt2Words, TheLastOfWhiteSpaceIsLeftToTheNextWord) {
  EXPECT_THAT(words("a  b"), ElementsAre("a", " ", " b"));
  EXPECT_THAT(words("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(words("a\nb\n\nc"), ElementsAre("a", "\n", "b", "\n", "\n", "c"));
  EXPECT_THAT(words("a \n b"), ElementsAre("a", " \n", " b"));
  EXPECT_THAT(words("a   "), ElementsAre("a", "   "));
  EXPECT_THAT(words(" "), ElementsAre(" "));
  EXPECT_THAT(words("\ta"), ElementsAre("\t", "a"));
  // Unicode's white space is of one kind with the others, but no word begins with it.
  EXPECT_THAT(words("a\u00A0\u3000b\u0085c"),
              ElementsAre("a", "\u00A0", "\u3000", "b", "\u0085", "c"));
  // Neither the separators of U+001C to U+001F nor the zero-width space are white space.
  EXPECT_THAT(words("a\x1C b\u200B"), ElementsAre("a", "\x1C", " b", "\u200B"));
}

TEST(PublishedExpressions, NothingIsCutThatMoreTextCouldChange) {
  const std::vector<std::string> pieces{"a", "é", "猫", "1",  "٣",      "!", "'",  "s",
                                        "l", " ", " ",  "\n", "\u00A0", "😀", "re", "ve"};
  std::mt19937 random(1);
  for (std::size_t round = 0; round < 300; ++round) {
    const std::string expression(kPublishedExpressions[round % 3].text);
    const Expression compiled(expression);
    Search search(compiled);
    std::vector<std::string> characters;
    for (int i = 0; i < 24; ++i) {
      characters.push_back(pieces[random() % pieces.size()]);
    }
    std::string text;
    for (const std::string& character : characters) {
      text += character;
    }
    const std::vector<std::string> whole = words(text, expression);
    std::string prefix;
    for (const std::string& character : characters) {
      prefix += character;
      std::string_view rest = prefix;
      std::size_t number = 0;
      for (Search::Match word = search.find(rest, 0, End::kNotYet); word.is_known;
           word = search.find(rest, 0, End::kNotYet)) {
        ASSERT_EQ(rest.substr(0, word.end), whole.at(number++)) << prefix;
        rest.remove_prefix(word.end);
      }
      // What waits is one word, with white space before it at most.
      EXPECT_LE(words(rest, expression).size(), 3U) << prefix;
    }
  }
}

TEST(Expression, IsThatOfOniguruma) {
  // U+180E, a space to PCRE2, is none; U+0085 is one.
  EXPECT_THAT(words("a\u180Eb \u0085", R"(\s+|\S+)"), ElementsAre("a\u180Eb", " \u0085"));
  // The ideographic comma is used with Han, but is none; kana are not.
  EXPECT_THAT(words("中、文ま", R"(\p{Han}|[^\p{Han}]+)"), ElementsAre("中", "、", "文", "ま"));
  EXPECT_THAT(words("a[b]c", R"([x[a[b\]]]c]+|.)"), ElementsAre("a", "[", "b]c"));
  EXPECT_THAT(words("a]^b", "[]a]+|[^]a]+"), ElementsAre("a]", "^b"));
  EXPECT_THAT(words("ab\nab", R"(b$|^a|ab|\n)"), ElementsAre("a", "b", "\n", "a", "b"));
  EXPECT_THAT(words("'S 'ſ", R"((?i:'s)|.)"), ElementsAre("'S", " ", "'ſ"));
  EXPECT_THAT(words("aaab", R"((?i)A{2,}?|(?>a)b|(?<=a)b)"), ElementsAre("aa", "ab"));
  EXPECT_FALSE(Expression(R"([a^]|[^b]|\^)").looks_back());
  EXPECT_TRUE(Expression("a|^b").looks_back());
  EXPECT_TRUE(Expression("(?<=a)b").looks_back());
}

TEST(Expression, RefusesByNameWhatIsReadDifferently) {
  for (const char* part : {R"(\w)", R"(\h)", R"(\b)", R"(\G)", R"(\1)", R"(\v)", "&&", "[^", "(?P",
                           "(?m", "(*F", "{1}?", "{1,3}+", "{,3}", R"(\p{^L})", R"(\x4)"}) {
    const std::string in_set = std::string(part) == "&&" || std::string(part) == "[^" ? "[a" : "";
    EXPECT_THAT(
        error_of([&] { Expression(in_set + "a" + part + "b])"); }),
        AllOf(HasSubstr("holds " + std::string(part).substr(0, 2)), HasSubstr("differently")));
  }
  for (const char* malformed : {"(a", "[a", "a)", "\\", "*", R"(\p{Nothing})", "\xFF"}) {
    EXPECT_THAT(error_of([&] { const Expression made{malformed}; }),
                HasSubstr("cannot be compiled"));
  }
  EXPECT_THAT(error_of([&] { Expression(std::string(20'000, 'a')); }), HasSubstr("20000 bytes"));
}

TEST(Expression, EndsWhereItTakesTooManySteps) {
  const std::string text = std::string(60'000, 'a') + "xb";
  for (const char* slow : {"(a+)+b", "(?:a|a)*b", "a*a*b", "(?:a)+b"}) {
    EXPECT_THAT(error_of([&] { (void)words(text, slow); }),
                HasSubstr("the expression " + std::string(slow)))
        << slow;
  }
  // Long words and white space are none of these.
  for (const auto& [name, expression] : kPublishedExpressions) {
    for (const char* character : {"a", "é", " ", "\n", "!", "'"}) {
      std::string run;
      for (int i = 0; i < 20'000; ++i) {
        run += character;
      }
      EXPECT_LE(words(run + "x", expression).size(), 3U) << name << " " << character;
    }
  }
}

TEST(Search, FindsNothingInAnEmptyText) {
  const Expression expression{std::string(kGpt2Expression)};
  EXPECT_FALSE(Search(expression).find("", 0, End::kReached).is_known);
  EXPECT_FALSE(Search(expression).find("", 0, End::kNotYet).is_known);
}

}  // namespace
}  // namespace strata::io::split_words_test
