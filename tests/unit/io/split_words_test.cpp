#include "tokenizer/split_words.hpp"

#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata::io {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t bytes = first_word(text, End::kReached);
    words.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
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

TEST(Gpt2Words, NothingIsCutThatMoreTextCouldChange) {
  const std::vector<std::string> pieces{"a", "é", "猫", "1",  "٣",      "!", "'",  "s",
                                        "l", " ", " ",  "\n", "\u00A0", "😀", "re", "ve"};
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> characters;
    for (int i = 0; i < 24; ++i) {
      characters.push_back(pieces[random() % pieces.size()]);
    }
    std::string text;
    for (const std::string& character : characters) {
      text += character;
    }
    const std::vector<std::string> whole = words(text);
    std::string prefix;
    for (const std::string& character : characters) {
      prefix += character;
      std::string_view rest = prefix;
      std::size_t number = 0;
      for (std::size_t bytes = first_word(rest, End::kNotYet); bytes > 0;
           bytes = first_word(rest, End::kNotYet)) {
        ASSERT_EQ(rest.substr(0, bytes), whole.at(number++)) << prefix;
        rest.remove_prefix(bytes);
      }
      // What waits is one word, with white space before it at most.
      EXPECT_LE(words(rest).size(), 3U) << prefix;
    }
  }
}

TEST(Gpt2Words, AnEmptyTextHasNone) {
  EXPECT_EQ(first_word("", End::kReached), 0U);
  EXPECT_EQ(first_word("", End::kNotYet), 0U);
}

}  // namespace
}  // namespace strata::io
