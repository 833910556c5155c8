#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/import.hpp"
#include "strata/io/tokenizer.hpp"

#include "text_files.hpp"

namespace strata::io::import_text_test {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using test::text_options;
using test::tokens_of;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using Ids = std::vector<std::int64_t>;

std::string import_error(const ImportOptions& options, ExitCode expected = ExitCode::kData) {
  const std::string text = error_of([&] { (void)import_dataset(options); }, expected);
  if (std::filesystem::exists(options.output)) {
    EXPECT_FALSE(std::filesystem::exists(options.output)) << text;
  }
  return text;
}

Dataset train_of(const ImportOptions& options) {
  return Dataset::open(import_dataset(options).train);
}

// Letters, signs of two to four bytes, runs of spaces: about `bytes` of them.
std::string mixed_text(std::size_t bytes, unsigned seed) {
  const std::vector<std::string> pieces{"the", " the", "aa", "é", "猫", "😀", "'ll",      " ",
                                        "  ",  "\n",   "7",  ".", "th", "x", "\xC2\xA0", "'"};
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    text += pieces[random() % pieces.size()];
  }
  return text;
}

TEST(ImportText, CharactersAreSortedByCodePoint) {
  const TemporaryDirectory directory;
  const ImportReport report =
      import_dataset(text_options(directory, TokenizerKind::kChars, {"cabé", "😀b"}, "0.5,0.5"));
  EXPECT_EQ(report.train_samples, 3);
  EXPECT_EQ(report.test_samples, 3);
  EXPECT_EQ(report.vocabulary, 5);
  const Dataset train = Dataset::open(report.train);
  const DatasetInfo& info = train.info();
  EXPECT_EQ(info.task, Task::kNextToken);
  EXPECT_EQ(info.tokenizer, TokenizerKind::kChars);
  EXPECT_EQ(info.tokens, 3);
  EXPECT_EQ(info.classes, 5);
  EXPECT_EQ(info.samples, 0);
  EXPECT_EQ(info.input_dtype, DType::kUint16);
  EXPECT_EQ(info.source, "text: a.txt, b.txt");
  EXPECT_THAT(tokens_of(train), ElementsAre(2, 0, 1));
  const Dataset test = Dataset::open(report.test);
  EXPECT_THAT(tokens_of(test), ElementsAre(3, 4, 1));
  EXPECT_EQ(Tokenizer::of(test.info()).decode(tokens_of(test)), "é😀b");
  EXPECT_EQ(test.info().tokenizer_checksum, info.tokenizer_checksum);
  EXPECT_NE(test.info().checksum, info.checksum);
}

TEST(ImportText, ManyCharactersNeedWiderIds) {
  const TemporaryDirectory directory;
  std::string text;
  std::u32string characters;
  for (char32_t character = 0x10000; character < 0x10000 + 70000; ++character) {
    text += {static_cast<char>(0xF0 | character >> 18U),
             static_cast<char>(0x80 | (character >> 12U & 0x3FU)),
             static_cast<char>(0x80 | (character >> 6U & 0x3FU)),
             static_cast<char>(0x80 | (character & 0x3FU))};
  }
  const Dataset train = train_of(text_options(directory, TokenizerKind::kChars, {text}, "1.0"));
  EXPECT_EQ(train.info().input_dtype, DType::kUint32);
  EXPECT_EQ(train.info().classes, 70000);
  Ids expected(70000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(tokens_of(train), expected);
}

TEST(ImportText, BytesTakeAnything) {
  const TemporaryDirectory directory;
  const Dataset train =
      train_of(text_options(directory, TokenizerKind::kBytes, {"a\xFF\xC3", "b"}, "4"));
  EXPECT_THAT(tokens_of(train), ElementsAre('a', 0xFF, 0xC3, 'b'));
  EXPECT_EQ(train.info().classes, 256);
  EXPECT_EQ(Tokenizer::of(train.info()).decode(tokens_of(train)),
            "a\xFF\xC3"
            "b");
}

TEST(ImportText, CompressedTextIsUnpacked) {
  const TemporaryDirectory directory;
  ImportOptions options = text_options(directory, TokenizerKind::kBytes, {"x"}, "1.0");
  test::write_gzip(options.inputs[0], "packed");
  const Dataset train = train_of(options);
  EXPECT_EQ(Tokenizer::of(train.info()).decode(tokens_of(train)), "packed");
}

TEST(ImportText, SeparatorsStandBetweenDocuments) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  ImportOptions options =
      text_options(directory, TokenizerKind::kGpt2, {"the", "the<|endoftext|>", "the"}, "1.0");
  const Ids marker{'<', '|', 'e', 'n', 'd', 'o', 'f', 't', 'e', 'x', 't', '|', '>'};
  Ids expected{257, 260, 257};
  expected.insert(expected.end(), marker.begin(), marker.end());
  expected.insert(expected.end(), {260, 257});
  EXPECT_EQ(tokens_of(train_of(options)), expected);
  options.separator = Separator::kNo;
  options.existing = Existing::kReplace;
  std::erase(expected, 260);
  EXPECT_EQ(tokens_of(train_of(options)), expected);
}

TEST(ImportText, LinesOfJsonAreDocuments) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  ImportOptions options = text_options(
      directory, TokenizerKind::kGpt2,
      {"{\"id\": 1, \"text\": \"the\"}\n{\"text\": \"\"}\n{\"text\": null}\n{\"text\": \"aa\"}\n",
       "{\"text\": \"\"}\n", "\n{\"text\": \"the\"}"},
      "1.0");
  options.text_field = "text";
  EXPECT_THAT(tokens_of(train_of(options)), ElementsAre(257, 260, 259, 260, 257));
  options.existing = Existing::kReplace;
  options.tokenizer = TokenizerKind::kChars;
  EXPECT_EQ(train_of(options).info().tokens, 8);
  options.output = directory / "other";
  options.text_field = "body";
  EXPECT_THAT(import_error(options),
              AllOf(HasSubstr("a.txt:1: the object has no field 'body'"), HasSubstr("id, text")));
  options.text_field = "id";
  EXPECT_THAT(import_error(options), HasSubstr("no text in the field 'id'"));
}

TEST(ImportText, DirectoriesAndFilesOfTheTestSplit) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  ImportOptions options = text_options(directory, TokenizerKind::kGpt2, {}, "");
  for (const auto& [name, text] : {std::pair{"in/train/b/2.txt", "aa"},
                                   {"in/train/1.txt", "the"},
                                   {"in/train/.hidden", "no"},
                                   {"in/test/3.txt", "thethe"},
                                   {"in/test/4.txt", "aa"}}) {
    std::filesystem::create_directories((directory / name).parent_path());
    write_file(directory / name, text);
  }
  options.inputs = {directory / "in"};
  // No separator begins the test split.
  const auto expect_both = [&] {
    const ImportReport report = import_dataset(options);
    EXPECT_THAT(tokens_of(Dataset::open(report.train)), ElementsAre(257, 260, 259));
    EXPECT_THAT(tokens_of(Dataset::open(report.test)), ElementsAre(257, 257, 260, 259));
  };
  expect_both();
  options.existing = Existing::kReplace;
  options.inputs = {directory / "in/train"};
  options.test_inputs = {directory / "in/test"};
  expect_both();
  options.tokenizer = TokenizerKind::kChars;
  EXPECT_EQ(import_dataset(options).test_samples, 8);
  options.split = "0.9,0.1";
  options.output = directory / "other";
  EXPECT_THAT(import_error(options, ExitCode::kUsage), HasSubstr("both say what is in the test"));
  options.split.clear();
  options.inputs = {directory / "in"};
  options.test_inputs.clear();
  write_file(directory / "in/val", "aa");
  EXPECT_THAT(import_error(options, ExitCode::kUsage),
              HasSubstr("holds train, test and val, which is of neither split"));
}

// Else the import reads its own lock, and the next one an earlier data set.
TEST(ImportText, NothingIsWrittenAmongTheTexts) {
  const TemporaryDirectory directory;
  ImportOptions options = text_options(directory, TokenizerKind::kBytes, {}, "1.0");
  std::filesystem::create_directories(directory / "in");
  write_file(directory / "in/1.txt", "the");
  options.inputs = {directory / "in"};
  for (const char* const output : {"in", "in/", "in/out", "in/deep/out", "in/../in/out"}) {
    options.output = directory / output;
    EXPECT_THAT(error_of([&] { (void)import_dataset(options); }, ExitCode::kUsage),
                HasSubstr("would be written among the files of"))
        << output;
  }
  for (const char* const output : {"in-out", "in/.out", "in/.deep/out"}) {
    options.output = directory / output;
    EXPECT_EQ(train_of(options).info().tokens, 3) << output;
  }
}

// Files are read a MiB at a time: characters, words and white space lie across the pieces.
TEST(ImportText, LongFilesGiveTheTokensOfTheWhole) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  const std::string text = mixed_text((std::size_t{5} << 19), 1);
  const std::string spaces = "the" + std::string(std::size_t{3} << 19, ' ') + "the";
  const ImportOptions options =
      text_options(directory, TokenizerKind::kGpt2, {text, spaces}, "1.0");
  const Dataset train = train_of(options);
  const Tokenizer tokenizer = Tokenizer::of(train.info());
  Ids expected = tokenizer.encode(text);
  const Ids more = tokenizer.encode(spaces);
  expected.push_back(tokenizer.separator());
  expected.insert(expected.end(), more.begin(), more.end());
  EXPECT_TRUE(tokens_of(train) == expected);
}

TEST(ImportText, TheTokenizerIsInTheDataSet) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  const Dataset train =
      train_of(text_options(directory, TokenizerKind::kGpt2, {"the aa the"}, "1.0"));
  const Tokenizer original = Tokenizer::gpt2(directory / "encoder.json", directory / "vocab.bpe");
  std::filesystem::remove(directory / "encoder.json");
  std::filesystem::remove(directory / "vocab.bpe");
  const Tokenizer stored = Tokenizer::of(train.info());
  EXPECT_EQ(stored.kind(), TokenizerKind::kGpt2);
  EXPECT_EQ(stored.vocabulary(), 261);
  EXPECT_EQ(stored.separator(), 260);
  const std::string text = mixed_text(5000, 2);
  EXPECT_EQ(stored.encode(text), original.encode(text));
  EXPECT_EQ(stored.decode(stored.encode(text)), text);
}

TEST(ImportText, SplitsAreCountsOrFractions) {
  const TemporaryDirectory directory;
  const auto sizes = [&](const std::string& split) {
    ImportOptions options =
        text_options(directory, TokenizerKind::kBytes, {"0123456", "789"}, split);
    options.existing = Existing::kReplace;
    const ImportReport report = import_dataset(options);
    return Ids{report.train_samples, report.test_samples, report.unused_samples};
  };
  EXPECT_THAT(sizes("0.9,0.1"), ElementsAre(9, 1, 0));
  EXPECT_THAT(sizes("0.77,0.23"), ElementsAre(7, 3, 0));
  EXPECT_THAT(sizes("4,5"), ElementsAre(4, 5, 1));
  EXPECT_THAT(sizes("1.0"), ElementsAre(10, 0, 0));
  ImportOptions options = text_options(directory, TokenizerKind::kBytes, {"0123456789"}, "8,3");
  options.output = directory / "other";
  EXPECT_THAT(import_error(options), AllOf(HasSubstr("8 + 3 tokens"), HasSubstr("hold 10")));
  options.split = "0.9,0.01";
  EXPECT_THAT(import_error(options), HasSubstr("leaves the test split empty"));
}

TEST(ImportText, ShardsHoldWholeBlocks) {
  const TemporaryDirectory directory;
  const std::string text = mixed_text(40000, 4);
  ImportOptions options = text_options(directory, TokenizerKind::kBytes, {text}, "0.9,0.1");
  options.shard_bytes = 2 * 4096 * 2 + 100;
  const Dataset train = train_of(options);
  ASSERT_EQ(train.info().shards.size(), 5U);
  EXPECT_EQ(train.info().shards[0].samples, 8192);
  EXPECT_EQ(train.info().shards[4].samples, train.info().tokens - 4 * 8192);
  EXPECT_EQ(Tokenizer::of(train.info()).decode(tokens_of(train)),
            text.substr(0, static_cast<std::size_t>(train.info().tokens)));
  Ids middle(9000);
  train.read_tokens(8000, middle);
  EXPECT_EQ(Tokenizer::of(train.info()).decode(middle), text.substr(8000, 9000));
}

TEST(ImportText, RefusesBadInput) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  for (const TokenizerKind kind :
       {TokenizerKind::kBytes, TokenizerKind::kChars, TokenizerKind::kGpt2}) {
    EXPECT_THAT(import_error(text_options(directory, kind, {"a", ""}, "1.0")),
                AllOf(HasSubstr("b.txt"), HasSubstr("is empty")));
  }
  // Behind the first piece, and at the end of a file.
  const std::string long_text = std::string((std::size_t{1} << 20) + 7, 'a');
  for (const TokenizerKind kind : {TokenizerKind::kChars, TokenizerKind::kGpt2}) {
    EXPECT_THAT(
        import_error(text_options(directory, kind, {"fine", long_text + "\xFF z"}, "1.0")),
        AllOf(HasSubstr("b.txt"), HasSubstr("byte 1048583 "), HasSubstr("--tokenizer=bytes")));
    EXPECT_THAT(import_error(text_options(directory, kind, {"fine\xE7\x8C", "fine"}, "1.0")),
                AllOf(HasSubstr("a.txt"), HasSubstr("byte 4 "), HasSubstr("cuts short")));
  }
  ImportOptions endless = text_options(directory, TokenizerKind::kGpt2, {"a"}, "1.0");
  test::write_gzip(endless.inputs[0], "the " + std::string(std::size_t{33} << 20, 'x'));
  EXPECT_THAT(import_error(endless),
              AllOf(HasSubstr("a.txt"), HasSubstr("16.00 MiB from byte 3 on")));
  ImportOptions missing = text_options(directory, TokenizerKind::kChars, {"a"}, "1.0");
  missing.inputs.push_back(directory / "none.txt");
  EXPECT_THAT(import_error(missing), HasSubstr("none.txt does not exist"));
  ImportOptions separated = text_options(directory, TokenizerKind::kChars, {"a", "b"}, "1.0");
  separated.separator = Separator::kYes;
  EXPECT_THAT(import_error(separated, ExitCode::kUsage), HasSubstr("--tokenizer=chars"));
  EXPECT_THAT(
      import_error(text_options(directory, TokenizerKind::kNone, {"a"}, "1.0"), ExitCode::kUsage),
      HasSubstr("--tokenizer"));
}

}  // namespace
}  // namespace strata::io::import_text_test
