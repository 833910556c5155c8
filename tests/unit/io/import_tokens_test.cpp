#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/io/import.hpp"
#include "strata/io/tokenizer.hpp"

#include "text_files.hpp"

namespace strata::io::import_tokens_test {
namespace {

using test::error_of;
using test::raw_bytes;
using test::TemporaryDirectory;
using test::tokens_of;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return raw_bytes(std::span<const T>(values));
}

ImportOptions token_options(const TemporaryDirectory& directory, ImportFormat format,
                            const std::vector<std::string>& files) {
  ImportOptions options;
  options.format = format;
  for (const std::string& file : files) {
    options.inputs.push_back(directory / file);
  }
  options.vocabulary = 40000;
  options.split = "1.0";
  options.output = directory / "out";
  options.existing = Existing::kReplace;
  return options;
}

std::string import_error(const ImportOptions& options, ExitCode expected = ExitCode::kData) {
  return error_of([&] { (void)import_dataset(options); }, expected);
}

Dataset train_of(const ImportOptions& options) {
  return Dataset::open(import_dataset(options).train);
}

std::string llmc(std::int32_t magic, std::int32_t version, std::int32_t count,
                 const std::string& tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header) + tokens;
}

// A Megatron index; each entry of `sizes` is a sequence, each of `documents` where one begins.
std::string megatron(std::uint8_t type, std::int64_t id_bytes,
                     const std::vector<std::int32_t>& sizes,
                     const std::vector<std::int64_t>& documents) {
  std::vector<std::int64_t> pointers;
  std::int64_t at = 0;
  for (const std::int32_t size : sizes) {
    pointers.push_back(at);
    at += size * id_bytes;
  }
  return std::string("MMIDIDX\0\0", 9) + bytes_of<std::uint64_t>({1}) +
         bytes_of<std::uint8_t>({type}) + bytes_of<std::uint64_t>({sizes.size()}) +
         bytes_of<std::uint64_t>({documents.size()}) + bytes_of(sizes) + bytes_of(pointers) +
         bytes_of(documents);
}

TEST(ImportTokens, NanoGptFilesAreBareTokens) {
  const TemporaryDirectory directory;
  // The first bytes are those that a gzip file begins with.
  write_file(directory / "a.bin", bytes_of<std::uint16_t>({0x8B1F, 8, 39999}));
  write_file(directory / "b.bin", bytes_of<std::uint16_t>({7}));
  const ImportOptions options =
      token_options(directory, ImportFormat::kNanoGptTokens, {"a.bin", "b.bin"});
  const Dataset train = train_of(options);
  EXPECT_THAT(tokens_of(train), ElementsAre(0x8B1F, 8, 39999, 7));
  EXPECT_EQ(train.info().classes, 40000);
  EXPECT_EQ(train.info().tokenizer, TokenizerKind::kNone);
  EXPECT_EQ(train.info().source, "tokens-nanogpt: a.bin, b.bin");
  EXPECT_THAT(error_of([&] { (void)Tokenizer::of(train.info()); }), HasSubstr("--tokenizer=gpt2"));
}

TEST(ImportTokens, NanoGptFilesMayBeWide) {
  const TemporaryDirectory directory;
  const std::vector<std::uint32_t> wide{109097, 81694, 5, 0, 128255};
  const std::vector<std::uint32_t> narrow{27811, 4087, 50256, 7, 1};
  const auto wider = [](const std::vector<std::uint32_t>& ids) {
    return bytes_of(std::vector<std::int64_t>(ids.begin(), ids.end()));
  };
  struct Case {
    std::string bytes;
    std::int64_t bits;
    std::int64_t vocabulary;
    std::vector<std::int64_t> ids;  // else it is refused
    std::string why;
  };
  const Case cases[] = {
      {bytes_of(wide), 32, 128256, {109097, 81694, 5, 0, 128255}, ""},
      {wider(wide), 64, 128256, {109097, 81694, 5, 0, 128255}, ""},
      {bytes_of(narrow), 32, 50257, {27811, 4087, 50256, 7, 1}, ""},
      {bytes_of<std::uint16_t>({0, 65535}), 0, 65536, {0, 65535}, ""},
      {bytes_of<std::uint16_t>({5, 0, 6, 0, 7, 0, 8, 0}), 16, 9, {5, 0, 6, 0, 7, 0, 8, 0}, ""},
      {bytes_of<std::uint16_t>({5, 0, 6, 0, 7, 0}), 0, 9, {5, 0, 6, 0, 7, 0}, ""},
      {bytes_of<std::uint16_t>({5, 0, 6, 0, 7, 0, 8, 1}), 0, 9, {5, 0, 6, 0, 7, 0, 8, 1}, ""},
      {bytes_of(wide), 0, 128256, {}, "16 bits, which cannot hold a vocabulary of 128,256"},
      {bytes_of(wide), 16, 65537, {}, "give --token-bits"},
      {bytes_of(narrow), 0, 50257, {}, "every second of its 10 numbers of 16 bits is 0"},
      {wider(narrow), 0, 50257, {}, "give --token-bits=32 or 64, or 16 if they are right"},
      {wider(narrow), 32, 50257, {}, "10 numbers of 32 bits is 0, so they probably have more bits"},
      // Big-endian.
      {bytes_of<std::uint16_t>({0, 1, 0, 2, 0, 3, 0, 4}), 0, 50257, {}, "every second"},
      {bytes_of<std::uint16_t>({0, 1, 0, 2, 0, 3, 0, 4}), 32, 50257, {}, "65,536 as its token 0 "},
      {wider({1}) + bytes_of<std::int64_t>({-1}), 64, 9, {}, "a negative number as its token 1 "},
      {bytes_of(wide) + "xx", 32, 128256, {}, "no whole number of 4 bytes"}};
  for (const Case& one : cases) {
    write_file(directory / "a.bin", one.bytes);
    ImportOptions options = token_options(directory, ImportFormat::kNanoGptTokens, {"a.bin"});
    options.vocabulary = one.vocabulary;
    options.token_bits = one.bits;
    if (one.why.empty()) {
      EXPECT_EQ(tokens_of(train_of(options)), one.ids);
    } else {
      EXPECT_THAT(import_error(options), HasSubstr(one.why));
    }
  }
}

TEST(ImportTokens, ATokenizerLetsThemBeRead) {
  const TemporaryDirectory directory;
  test::write_pairs(directory, test::small_pairs());
  write_file(directory / "a.bin", bytes_of<std::uint16_t>({257, 258, 260, 33}));
  ImportOptions options = token_options(directory, ImportFormat::kNanoGptTokens, {"a.bin"});
  options.vocabulary = 0;
  options.tokenizer = TokenizerKind::kGpt2;
  options.encoder = directory / "encoder.json";
  options.merges = directory / "vocab.bpe";
  const Dataset train = train_of(options);
  EXPECT_EQ(train.info().classes, 261);
  EXPECT_EQ(Tokenizer::of(train.info()).decode(tokens_of(train)), "the the<|endoftext|>!");
}

TEST(ImportTokens, RefusesBadNanoGptFiles) {
  const TemporaryDirectory directory;
  ImportOptions options = token_options(directory, ImportFormat::kNanoGptTokens, {"a.bin"});
  EXPECT_THAT(import_error(options), HasSubstr("a.bin does not exist"));
  write_file(directory / "a.bin", "");
  EXPECT_THAT(import_error(options), HasSubstr("a.bin holds no tokens"));
  write_file(directory / "a.bin", "12345");
  EXPECT_THAT(import_error(options), AllOf(HasSubstr("5 bytes"), HasSubstr("of 2 bytes each")));
  write_file(directory / "a.bin", bytes_of<std::uint16_t>({5, 40000}));
  EXPECT_THAT(import_error(options),
              AllOf(HasSubstr("40,000 as its token 1 "), HasSubstr("0 to 39,999")));
  EXPECT_FALSE(std::filesystem::exists(options.output));
  options.vocabulary = 0;
  EXPECT_THAT(import_error(options, ExitCode::kUsage), HasSubstr("--vocabulary=N"));
  options.tokenizer = TokenizerKind::kChars;
  EXPECT_THAT(import_error(options, ExitCode::kUsage), HasSubstr("--tokenizer=chars"));
  options.tokenizer = TokenizerKind::kBytes;
  options.vocabulary = 5;
  EXPECT_THAT(import_error(options, ExitCode::kUsage), HasSubstr("either --vocabulary=N"));
  options.vocabulary = 0;
  options.separator = Separator::kYes;
  EXPECT_THAT(import_error(options, ExitCode::kUsage), HasSubstr("--separator"));
}

TEST(ImportTokens, LlmcFilesHaveAHeader) {
  const TemporaryDirectory directory;
  write_file(directory / "a.bin", llmc(20240520, 1, 3, bytes_of<std::uint16_t>({1, 2, 39999})));
  write_file(directory / "b.bin", llmc(20240801, 7, 2, bytes_of<std::uint32_t>({4, 39998})));
  write_file(directory / "c.bin", llmc(20240801, 7, 2, bytes_of<std::uint32_t>({4, 100000})));
  ImportOptions options = token_options(directory, ImportFormat::kLlmcTokens, {"a.bin", "b.bin"});
  EXPECT_THAT(tokens_of(train_of(options)), ElementsAre(1, 2, 39999, 4, 39998));
  options.vocabulary = 100001;
  EXPECT_THAT(import_error(options),
              AllOf(HasSubstr("a.bin has token ids of 16 bits"),
                    HasSubstr("a vocabulary of 100,001; give the tokenizer")));
  options.inputs = {directory / "c.bin"};
  const Dataset train = train_of(options);
  EXPECT_EQ(train.info().input_dtype, DType::kUint32);
  EXPECT_THAT(tokens_of(train), ElementsAre(4, 100000));
}

TEST(ImportTokens, RefusesBadLlmcFiles) {
  const TemporaryDirectory directory;
  const ImportOptions options = token_options(directory, ImportFormat::kLlmcTokens, {"a.bin"});
  const auto problem = [&](const std::string& bytes) {
    write_file(directory / "a.bin", bytes);
    return import_error(options);
  };
  const std::string tokens = bytes_of<std::uint16_t>({1, 2, 3});
  EXPECT_THAT(problem(tokens), HasSubstr("a header of 1024"));
  EXPECT_THAT(problem(llmc(20240521, 1, 3, tokens)),
              AllOf(HasSubstr("20240521"), HasSubstr("begin with 20240520 and 1")));
  EXPECT_THAT(problem(llmc(20240520, 2, 3, tokens)), HasSubstr("20240520 and 2"));
  EXPECT_THAT(problem(llmc(20240520, 1, 4, tokens)), HasSubstr("promises 4 tokens but holds 3"));
  EXPECT_THAT(problem(llmc(20240520, 1, 3, tokens + "x")), HasSubstr("7 bytes"));
  EXPECT_THAT(problem(llmc(20240520, 1, 0, "")), HasSubstr("holds no tokens"));
}

TEST(ImportTokens, MegatronFilesComeInPairs) {
  const TemporaryDirectory directory;
  write_file(directory / "a.bin", bytes_of<std::uint16_t>({1, 2, 3, 39999, 5}));
  write_file(directory / "a.idx", megatron(8, 2, {2, 0, 3}, {0, 2, 3}));
  write_file(directory / "b.bin", bytes_of<std::int32_t>({6, 7}));
  // A mode for each sequence, as multimodal data has.
  write_file(directory / "b.idx", megatron(4, 4, {2}, {0, 1}) + std::string(1, '\0'));
  write_file(directory / "c.bin", bytes_of<std::int64_t>({8}));
  write_file(directory / "c.idx", megatron(5, 8, {1}, {0, 1}));
  const Dataset train =
      train_of(token_options(directory, ImportFormat::kMegatronTokens, {"a.bin", "b.idx", "c"}));
  EXPECT_THAT(tokens_of(train), ElementsAre(1, 2, 3, 39999, 5, 6, 7, 8));
  EXPECT_EQ(train.info().source, "tokens-megatron: a.bin, b.bin, c.bin");
  EXPECT_THAT(train.documents().ends, ElementsAre(2, 5, 7, 8));
}

TEST(ImportTokens, RefusesBadMegatronFiles) {
  const TemporaryDirectory directory;
  const ImportOptions options = token_options(directory, ImportFormat::kMegatronTokens, {"a.bin"});
  const std::string tokens = bytes_of<std::uint16_t>({1, 2, 3, 4, 5});
  const auto problem = [&](const std::string& index, const std::string& bin) {
    write_file(directory / "a.idx", index);
    write_file(directory / "a.bin", bin);
    return import_error(options);
  };
  EXPECT_THAT(import_error(options), HasSubstr("a.bin does not exist"));
  write_file(directory / "a.bin", tokens);
  EXPECT_THAT(import_error(options), HasSubstr("a.idx does not exist"));
  const std::string good = megatron(8, 2, {2, 3}, {0, 2});
  EXPECT_THAT(problem("", tokens), HasSubstr("a.idx has 0 bytes"));
  EXPECT_THAT(problem("X" + good.substr(1), tokens), HasSubstr("MMIDIDX"));
  EXPECT_THAT(problem(good.substr(0, good.size() - 3), tokens), HasSubstr("is damaged"));
  EXPECT_THAT(problem(good, tokens.substr(2)),
              AllOf(HasSubstr("describes 10 bytes"), HasSubstr("holds 8")));
  EXPECT_THAT(problem(good, tokens + "xx"), HasSubstr("holds 12"));
  EXPECT_THAT(problem(good, ""), HasSubstr("holds 0"));
  EXPECT_THAT(problem(megatron(7, 2, {2, 3}, {0, 2}), tokens), HasSubstr("the type 7"));
  EXPECT_THAT(problem(megatron(8, 4, {2, 3}, {0, 2}), tokens), HasSubstr("at byte 8; byte 4"));
  EXPECT_THAT(problem(megatron(8, 2, {-1, 6}, {0, 2}), tokens), HasSubstr("sequence 0 of -1"));
  EXPECT_THAT(problem(megatron(8, 2, {2, 3}, {0, 1}), tokens), HasSubstr("document 1"));
  EXPECT_THAT(problem(megatron(8, 2, {2, 3}, {1, 2}), tokens), HasSubstr("document 0"));
  EXPECT_THAT(problem(megatron(1, 1, {5}, {0, 1}), "\1\2\3\4\5"), HasSubstr("ids of 8 bits"));
  const std::string negative = bytes_of<std::int32_t>({1, -2});
  EXPECT_THAT(problem(megatron(4, 4, {2}, {0, 1}), negative),
              AllOf(HasSubstr("a negative number"), HasSubstr("token 1 ")));
}

}  // namespace
}  // namespace strata::io::import_tokens_test
