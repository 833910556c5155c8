#include "strata/io/tokenizer.hpp"

#include <cstdlib>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text_files.hpp"

namespace strata::io::tokenizer_test {
namespace {

using test::error_of;
using test::small_pairs;
using test::SmallPairs;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ids = std::vector<std::int64_t>;

Tokenizer gpt2_of(const TemporaryDirectory& directory, const SmallPairs& pairs) {
  test::write_pairs(directory, pairs);
  return Tokenizer::gpt2(directory / "encoder.json", directory / "vocab.bpe");
}

TEST(Tokenizer, BytesAreTheirOwnIds) {
  const Tokenizer tokenizer = Tokenizer::bytes();
  EXPECT_EQ(tokenizer.kind(), TokenizerKind::kBytes);
  EXPECT_EQ(tokenizer.vocabulary(), 256);
  EXPECT_EQ(tokenizer.separator(), -1);
  EXPECT_THAT(tokenizer.encode("a\xFF\n"), ElementsAre(97, 255, 10));
  EXPECT_EQ(tokenizer.decode(Ids{97, 255, 10}), "a\xFF\n");
  EXPECT_THAT(error_of([&] { (void)tokenizer.decode(Ids{256}); }),
              AllOf(HasSubstr("256"), HasSubstr("0 to 255")));
  EXPECT_THAT(error_of([&] { (void)tokenizer.decode(Ids{-1}); }), HasSubstr("-1"));
}

TEST(Tokenizer, CharactersAreNumberedAsGiven) {
  const Tokenizer tokenizer = Tokenizer::chars({U'b', U'é', U'猫', U'😀'});
  EXPECT_EQ(tokenizer.vocabulary(), 4);
  EXPECT_THAT(tokenizer.encode("😀é猫b"), ElementsAre(3, 1, 2, 0));
  EXPECT_EQ(tokenizer.decode(Ids{3, 1, 2, 0}), "😀é猫b");
  EXPECT_THAT(error_of([&] { (void)tokenizer.encode("bü"); }),
              AllOf(HasSubstr("'ü'"), HasSubstr("U+00FC"), HasSubstr("4")));
  EXPECT_THAT(error_of([&] { (void)tokenizer.encode("b\n"); }), HasSubstr("U+000A"));
  EXPECT_THAT(error_of([&] { (void)tokenizer.decode(Ids{4}); }), HasSubstr("4"));
  EXPECT_THROW((void)Tokenizer::chars({U'b', U'b'}), std::logic_error);
}

TEST(Tokenizer, RefusesWhatIsNotUtf8) {
  const Tokenizer tokenizer = Tokenizer::chars({U'a'});
  for (const char* bad : {"\x80", "\xC0\xAF", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80", "\xE2\x82",
                          "\xF4\x90\x80\x80", "\xF0\x8F\xBF\xBF", "\xF8\x88\x80\x80\x80", "\xFF"}) {
    EXPECT_THAT(error_of([&] { (void)tokenizer.encode("aaaaaaaaaa" + std::string(bad)); }),
                AllOf(HasSubstr("UTF-8"), HasSubstr("byte 10")));
  }
}

TEST(Gpt2Tokenizer, MergesPairsInTheirOrder) {
  const TemporaryDirectory directory;
  const Tokenizer tokenizer = gpt2_of(directory, small_pairs());
  EXPECT_EQ(tokenizer.vocabulary(), 261);
  EXPECT_EQ(tokenizer.separator(), 260);
  EXPECT_THAT(tokenizer.encode("the the th aaa aaaa"),
              ElementsAre(257, 258, ' ', 256, ' ', 259, 'a', ' ', 259, 259));
  EXPECT_EQ(tokenizer.decode(Ids{257, 258, ' ', 256}), "the the th");
  EXPECT_THAT(tokenizer.encode("é"), ElementsAre(0xC3, 0xA9));
  EXPECT_TRUE(tokenizer.encode("").empty());
}

TEST(Gpt2Tokenizer, KnowsTheSeparatorWhereAsked) {
  const TemporaryDirectory directory;
  const Tokenizer tokenizer = gpt2_of(directory, small_pairs());
  EXPECT_THAT(tokenizer.encode("the<|endoftext|>the"), ElementsAre(257, 260, 257));
  EXPECT_THAT(tokenizer.encode("<|endoftext|>"), ElementsAre(260));
  EXPECT_THAT(tokenizer.encode("<|endoftext|>", Markers::kAsText),
              ElementsAre('<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>'));
  EXPECT_EQ(tokenizer.decode(Ids{260}), "<|endoftext|>");
}

// The published encoder's loop, word for word on ids: the pair of lowest rank is merged everywhere.
Ids slow_merges(const std::string& word,
                const std::vector<std::pair<std::string, std::string>>& merges,
                const Tokenizer& tokenizer) {
  std::vector<std::string> parts;
  for (const char byte : word) {
    parts.emplace_back(1, byte);
  }
  for (bool merged = true; merged;) {
    merged = false;
    for (const auto& [left, right] : merges) {
      std::vector<std::string> next;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (i + 1 < parts.size() && parts[i] == left && parts[i + 1] == right) {
          next.push_back(left + right);
          ++i;
        } else {
          next.push_back(parts[i]);
        }
      }
      if (next.size() < parts.size()) {
        parts = next;
        merged = true;
        break;
      }
    }
  }
  Ids ids;
  for (const std::string& part : parts) {
    for (std::int64_t id = 0; id < tokenizer.vocabulary(); ++id) {
      if (tokenizer.decode(Ids{id}) == part) {
        ids.push_back(id);
        break;
      }
    }
  }
  return ids;
}

TEST(Gpt2Tokenizer, AgreesWithTheSlowLoopForRandomMerges) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    // Merges of what was made before, so that some results have several.
    std::vector<std::string> parts{"a", "b", "c"};
    SmallPairs pairs;
    std::vector<std::pair<std::string, std::string>> repeated;
    while (pairs.merges.size() + repeated.size() < 14) {
      const std::string left = parts[random() % parts.size()];
      const std::string right = parts[random() % parts.size()];
      const auto merge = std::pair(left, right);
      const auto in = [&](const auto& list) {
        return std::find(list.begin(), list.end(), merge) != list.end();
      };
      if (left.size() + right.size() > 6 || in(pairs.merges) || in(repeated)) {
        continue;
      }
      if (std::find(parts.begin(), parts.end(), left + right) == parts.end()) {
        pairs.merges.push_back(merge);
        parts.push_back(left + right);
      } else {
        repeated.push_back(merge);
      }
    }
    const TemporaryDirectory directory;
    std::vector<std::pair<std::string, std::string>> all = pairs.merges;
    all.insert(all.end(), repeated.begin(), repeated.end());
    std::shuffle(all.begin(), all.end(), random);
    write_file(directory / "encoder.json", pairs.encoder());
    write_file(directory / "vocab.bpe", SmallPairs{all}.vocab());
    const Tokenizer tokenizer =
        Tokenizer::gpt2(directory / "encoder.json", directory / "vocab.bpe");
    for (int i = 0; i < 40; ++i) {
      std::string word;
      for (std::size_t length = 1 + random() % 24; length > 0; --length) {
        word += static_cast<char>('a' + random() % 3);
      }
      EXPECT_EQ(tokenizer.encode(word), slow_merges(word, all, tokenizer)) << word;
    }
  }
}

TEST(Gpt2Tokenizer, RefusesFilesThatDoNotFit) {
  const TemporaryDirectory directory;
  const auto problem = [&](const std::string& encoder, const std::string& vocab) {
    write_file(directory / "encoder.json", encoder);
    write_file(directory / "vocab.bpe", vocab);
    return error_of(
        [&] { (void)Tokenizer::gpt2(directory / "encoder.json", directory / "vocab.bpe"); });
  };
  const SmallPairs good = small_pairs();
  EXPECT_THAT(problem(good.encoder(), good.vocab() + "x y\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("\"xy\""), HasSubstr("encoder.json")));
  EXPECT_THAT(problem(good.encoder(), good.vocab() + "zz z\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("\"zz\"")));
  EXPECT_THAT(problem(good.encoder(), good.vocab() + "t h\n"),
              AllOf(HasSubstr("line 6"), HasSubstr("line 2")));
  EXPECT_THAT(problem(good.encoder(), "t h e\n"), HasSubstr("line 1"));
  EXPECT_THAT(problem(good.encoder(), "the\n"), HasSubstr("a space between"));
  EXPECT_THAT(problem(good.encoder(), "#version: 0.2\n"), HasSubstr("no merges"));
  EXPECT_THAT(problem(good.encoder(R"("zz": 259, "yy")"), good.vocab()),
              AllOf(HasSubstr("259"), HasSubstr("two tokens")));
  EXPECT_THAT(problem(good.encoder(R"("zz": 900, "yy")"), good.vocab()),
              AllOf(HasSubstr("900"), HasSubstr("without holes")));
  EXPECT_THAT(problem(good.encoder(R"("zz": -1, "yy")"), good.vocab()), HasSubstr("-1"));
  EXPECT_THAT(problem(good.encoder(R"("zz": "one", "yy")"), good.vocab()), HasSubstr("one"));
  EXPECT_THAT(problem(good.encoder(R"("a b")"), good.vocab()), HasSubstr("\"a b\""));
  EXPECT_THAT(problem("{\"a\": 0}", good.vocab()), HasSubstr("no token for the byte 0"));
  EXPECT_THAT(problem("[1, 2]", good.vocab()), HasSubstr("JSON object"));
  EXPECT_THAT(problem("{\"a\": 0", good.vocab()), HasSubstr("JSON object"));
  EXPECT_THAT(error_of([&] { (void)Tokenizer::gpt2(directory / "none", directory / "none"); }),
              HasSubstr("does not exist"));
}

class PublishedGpt2 : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* data = std::getenv("STRATA_DATA_DIR");
    const std::filesystem::path files =
        std::filesystem::path(data != nullptr ? data : "") / "gpt2-bpe";
    if (data != nullptr && std::filesystem::exists(files)) {
      tokenizer_ =
          std::make_unique<Tokenizer>(Tokenizer::gpt2(files / "encoder.json", files / "vocab.bpe"));
    }
  }
  static void TearDownTestSuite() { tokenizer_.reset(); }
  void SetUp() override {
    if (tokenizer_ == nullptr) {
      GTEST_SKIP() << "STRATA_DATA_DIR is not set, or has no gpt2-bpe";
    }
  }
  static Ids encode(const std::string& text) { return tokenizer_->encode(text); }

  static std::unique_ptr<Tokenizer> tokenizer_;
};

std::unique_ptr<Tokenizer> PublishedGpt2::tokenizer_;

TEST_F(PublishedGpt2, GivesThePublishedIds) {
  EXPECT_EQ(tokenizer_->vocabulary(), 50257);
  EXPECT_EQ(tokenizer_->separator(), 50256);
  EXPECT_THAT(encode("Hello world"), ElementsAre(15496, 995));
  EXPECT_THAT(encode(" world"), ElementsAre(995));
  EXPECT_THAT(encode("hello world"), ElementsAre(31373, 995));
  EXPECT_THAT(encode("Hello, world!"), ElementsAre(15496, 11, 995, 0));
  EXPECT_THAT(encode("<|endoftext|>"), ElementsAre(50256));
  EXPECT_THAT(encode("\n\n"), ElementsAre(628));
  EXPECT_THAT(encode("The quick brown fox jumps over the lazy dog"),
              ElementsAre(464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290));
  EXPECT_THAT(encode("Hello, I'm a language model,"),
              ElementsAre(15496, 11, 314, 1101, 257, 3303, 2746, 11));
  EXPECT_THAT(
      encode("First Citizen:\nBefore we proceed any further, hear me speak."),
      ElementsAre(5962, 22307, 25, 198, 8421, 356, 5120, 597, 2252, 11, 3285, 502, 2740, 13));
  EXPECT_THAT(encode("Replace me by any text you'd like."),
              ElementsAre(3041, 5372, 502, 416, 597, 2420, 345, 1549, 588, 13));
}

TEST_F(PublishedGpt2, DecodesWhatItEncodes) {
  for (const std::string text :
       {"", " ", "a  b   c\n\n\n d\t", "I'll we've 'SHE'S don't''", "naïve façade Привет мир",
        "你好，世界。こんにちは 한국어", "😀👍🏽 family 👨‍👩‍👧", "12 3456 ٣٤ ½ Ⅷ",
        "\xC2\xA0x\xE3\x80\x80y\xE2\x80\x83", "\r\n\x1C\x01 end"}) {
    EXPECT_EQ(tokenizer_->decode(encode(text)), text);
  }
}

}  // namespace
}  // namespace strata::io::tokenizer_test
