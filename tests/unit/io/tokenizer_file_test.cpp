#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "strata/io/tokenizer.hpp"

#include "text_files.hpp"
#include "tokenizer/byte_characters.hpp"
#include "tokenizer/rank_file.hpp"
#include "tokenizer/split_words.hpp"
#include "tokenizer/text_encoder.hpp"
#include "tokenizer/tokenizer_contents.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace strata::io::tokenizer_file_test {
namespace {

using nlohmann::json;
using test::error_of;
using test::small_pairs;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ids = std::vector<std::int64_t>;

/// small_pairs() as a tokenizer.json: "th", "the", " the", "aa", <|endoftext|> are 256 to 260.
json small_json() {
  json merges = json::array();
  for (const auto& [left, right] : small_pairs().merges) {
    merges.push_back(left + " " + right);
  }
  json vocabulary = json::parse(small_pairs().encoder());
  vocabulary.erase("<|endoftext|>");
  return {{"added_tokens", {{{"id", 260}, {"content", "<|endoftext|>"}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

json llama3_splitter() {
  BytePairTables tables;
  tables.splits = {{std::string(kLlama3Expression)}};
  return json::parse(tokenizer_json(tables)).at("pre_tokenizer");
}

/// TemplateProcessing of sequences A and B, and <|endoftext|> and <|begin|>, which are 260 and 261.
json framed(const std::vector<std::string>& pieces) {
  json single = json::array();
  for (const std::string& piece : pieces) {
    single.push_back(piece.size() == 1 ? json{{"Sequence", {{"id", piece}, {"type_id", 0}}}}
                                       : json{{"SpecialToken", {{"id", piece}, {"type_id", 0}}}});
  }
  const auto token = [](const char* text, int id) {
    return json{{"id", text}, {"ids", {id}}, {"tokens", {text}}};
  };
  return {
      {"type", "TemplateProcessing"},
      {"single", single},
      {"pair", json::array()},
      {"special_tokens",
       {{"<|endoftext|>", token("<|endoftext|>", 260)}, {"<|begin|>", token("<|begin|>", 261)}}}};
}

/// Base64 of one or two bytes, enough for the tests.
std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto byte = [&](std::size_t i) {
    return i < bytes.size() ? static_cast<unsigned>(static_cast<unsigned char>(bytes[i])) : 0U;
  };
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const unsigned bits = byte(i) << 16U | byte(i + 1) << 8U | byte(i + 2);
    for (std::size_t digit = 0; digit < 4; ++digit) {
      text += i + digit > bytes.size() ? '=' : kDigits[bits >> (18U - 6U * digit) & 63U];
    }
  }
  return text;
}

std::string rank_lines(const std::vector<std::string>& tokens) {
  std::string text;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    text += base64(tokens[rank]) + " " + std::to_string(rank) + "\n";
  }
  return text;
}

std::vector<std::string> all_bytes_and(std::vector<std::string> more) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

class TokenizerFile : public ::testing::Test {
 protected:
  Tokenizer read(const std::string& text, const std::string& pattern = "") {
    write_file(directory_ / "file", text);
    return Tokenizer::from_file(directory_ / "file", pattern);
  }
  std::string problem(const std::string& text, const std::string& pattern = "") {
    return error_of([&] { (void)read(text, pattern); });
  }

  TemporaryDirectory directory_;
};

/// Imports a text, and returns the tokenizer as the data set stores it.
Tokenizer stored(const TemporaryDirectory& directory, const std::filesystem::path& file,
                 const std::string& pattern,
                 const std::string& text = "the other <|endoftext|>aaa") {
  ImportOptions options = test::text_options(directory, TokenizerKind::kNone, {text}, "1.0");
  options.tokenizer_file = file;
  options.split_pattern = pattern;
  options.existing = Existing::kReplace;
  import_dataset(options);
  return Tokenizer::of(Dataset::open(options.output / "train.h5").info());
}

TEST_F(TokenizerFile, JsonGivesTheIdsOfItsMerges) {
  for (const bool pairs : {false, true}) {
    json file = small_json();
    if (pairs) {
      file["model"]["merges"] =
          json::parse(R"([["t", "h"], ["th", "e"], ["Ġ", "the"], ["a", "a"]])");
    }
    const Tokenizer tokenizer = read(file.dump());
    EXPECT_EQ(tokenizer.kind(), TokenizerKind::kGpt2);
    EXPECT_EQ(tokenizer.vocabulary(), 261);
    EXPECT_EQ(tokenizer.separator(), 260);
    EXPECT_THAT(tokenizer.encode("the the th aaa"), ElementsAre(257, 258, ' ', 256, ' ', 259, 'a'));
    EXPECT_THAT(tokenizer.encode("the<|endoftext|>the"), ElementsAre(257, 260, 257));
    EXPECT_EQ(tokenizer.encode("<|endoftext|>", Markers::kAsText).size(), 13U);
    EXPECT_EQ(tokenizer.decode(Ids{257, 260}), "the<|endoftext|>");
    EXPECT_THAT(error_of([&] { (void)tokenizer.encode("the\xFF"); }), HasSubstr("byte 3"));
  }
}

TEST_F(TokenizerFile, JsonSaysWhetherWholeWordsNeedMerges) {
  json file = small_json();
  file["model"]["vocab"]["xyz"] = 260;
  file["added_tokens"][0]["id"] = 261;
  EXPECT_THAT(read(file.dump()).encode("xyz"), ElementsAre('x', 'y', 'z'));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(read(file.dump()).encode("xyz"), ElementsAre(260));
}

TEST_F(TokenizerFile, RefusesJsonThatIsNotSupportedByName) {
  struct Case {
    const char* pointer;
    json value;
    std::vector<std::string> words;
  };
  json other = llama3_splitter();
  other["pretokenizers"][0]["pattern"]["Regex"] = "\\w+";
  json merges = llama3_splitter();
  merges["pretokenizers"][0]["behavior"] = "MergedWithNext";
  json after = llama3_splitter();
  after["pretokenizers"].push_back({{"type", "Digits"}});
  json unsplit = llama3_splitter();
  unsplit["pretokenizers"].erase(0);
  json beyond = framed({"<|endoftext|>", "A"});
  beyond["special_tokens"]["<|endoftext|>"]["ids"][0] = 261;
  for (const auto& [pointer, value, words] : std::vector<Case>{
           {"/model/type", "Unigram", {"type \"Unigram\"", "tokens-"}},
           {"/model/type", "WordPiece", {"type \"WordPiece\""}},
           {"/model", 5, {"has no model", "encoder.json"}},
           {"/model/byte_fallback", true, {"byte_fallback true"}},
           {"/model/dropout", 0.1, {"dropout 0.1"}},
           {"/normalizer", {{"type", "NFKC"}}, {"normalizer", "NFKC"}},
           {"/decoder", {{"type", "Metaspace"}}, {"decoder", "Metaspace"}},
           {"/pre_tokenizer", nullptr, {"pre_tokenizer null"}},
           {"/pre_tokenizer/add_prefix_space", true, {"add_prefix_space"}},
           {"/pre_tokenizer/use_regex", false, {"without an expression"}},
           {"/pre_tokenizer", unsplit, {"without an expression"}},
           {"/pre_tokenizer", other, {"Split", "\\w+ holds \\w"}},
           {"/pre_tokenizer", merges, {"behavior \"MergedWithNext\""}},
           {"/pre_tokenizer", after, {"Digits", "after ByteLevel"}},
           {"/model/vocab/zz", 900, {"262 tokens", "524", "ids below 524"}},
           {"/model/vocab/zz", 257, {"the id 257 to two tokens"}},
           {"/model/vocab/zz", 1.5, {"the id -1"}},
           {"/model/vocab/a b", 261, {"\"a b\"", "byte characters"}},
           {"/model/vocab", json::array(), {"object vocab"}},
           {"/model/vocab", {{"a", 0}, {"b", 1}}, {"3 tokens", "260", "ids below 6"}},
           {"/added_tokens/0/lstrip", "yes", {"lstrip \"yes\"", "true or false"}},
           {"/added_tokens",
            {{{"id", 260}, {"content", "猫"}}, {{"id", 261}}},
            {"content and an id"}},
           {"/added_tokens/0/content", "a", {"\"a\"", "97 and 260"}},
           {"/added_tokens/0/content", "猫", {}},
           {"/model/merges/0", "t h e", {"merge 0", "two tokens"}},
           {"/model/merges/0", {"t", 5}, {"merge 0", "two tokens"}},
           {"/model/merges/1", "x y", {"merge 1", "\"xy\" is no token"}},
           {"/model/merges/1", "zz y", {"merge 1", "\"zz\" is no token"}},
           {"/model/merges/1", "t h", {"merge 1", "twice"}},
           {"/model/merges", {{"a", 1}}, {"list merges"}},
           {"/post_processor",
            {{"type", "RobertaProcessing"}, {"sep", {"</s>", 2}}},
            {"post_processor of type \"RobertaProcessing\"", "TemplateProcessing"}},
           {"/post_processor", framed({"<|endoftext|>", "A", "A"}), {"$A once"}},
           {"/post_processor", framed({"<|endoftext|>"}), {"$A once"}},
           {"/post_processor", framed({"[CLS]", "A"}), {"[CLS]", "special tokens with their ids"}},
           {"/post_processor", framed({"A", "B"}), {"Sequence", "special tokens with their ids"}},
           {"/post_processor", beyond, {"id 261", "0 to 260"}}}) {
    json file = small_json();
    file[json::json_pointer(pointer)] = value;
    const std::string text = file.dump();
    if (words.empty()) {
      EXPECT_EQ(read(text).decode(Ids{260}), value.get<std::string>());
      continue;
    }
    const std::string message = problem(text);
    for (const std::string& word : words) {
      EXPECT_THAT(message, HasSubstr(word)) << pointer << " " << value;
    }
  }
  EXPECT_THAT(problem("{\"model\": {"), AllOf(HasSubstr("file is not valid JSON")));
  EXPECT_THAT(error_of([&] { (void)read(small_json().dump(), "gpt2"); }, ExitCode::kUsage),
              HasSubstr("--split-pattern"));
}

TEST_F(TokenizerFile, DamagedJsonIsReadOrRefused) {
  const std::string good = small_json().dump();
  std::mt19937 random(5);
  int read = 0;
  for (int i = 0; i < 10'000; ++i) {
    std::string text = good;
    switch (random() % 4) {
      case 0:
        text.resize(random() % text.size());
        break;
      case 1:
        text.erase(random() % text.size(), 1 + random() % 20);
        break;
      case 2:
        text.insert(random() % text.size(), text.substr(random() % text.size(), random() % 20));
        break;
      default:
        text[random() % text.size()] = static_cast<char>(random());
    }
    try {
      const BytePairTables tables = parse_tokenizer_json(text, "damaged.json");
      const BytePairs pairs(tables);
      std::vector<std::uint32_t> ids;
      BytePairsEncoder(pairs).encode("the other aaaa", End::kReached, ids);
      ++read;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_THAT(error.what(), HasSubstr("damaged.json"));
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_LT(read, 9'900);
}

TEST_F(TokenizerFile, RanksMergeTheLowestResultFirst) {
  // "abc" comes of "a" and "bc" as well as of "ab" and "c".
  const Tokenizer tokenizer =
      read(rank_lines(all_bytes_and({"bc", "ab", "abc", "aab", "long"})), "llama3");
  EXPECT_EQ(tokenizer.vocabulary(), 262);
  EXPECT_EQ(tokenizer.separator(), 261);
  EXPECT_THAT(tokenizer.encode("abcab"), ElementsAre(258, 257));
  EXPECT_THAT(tokenizer.encode("aab"), ElementsAre(259));
  EXPECT_THAT(tokenizer.encode("long longs"), ElementsAre(260, ' ', 'l', 'o', 'n', 'g', 's'));
  EXPECT_THAT(tokenizer.encode("1234"), ElementsAre('1', '2', '3', '4'));
  EXPECT_EQ(tokenizer.decode(Ids{260, 261}), "long<|endoftext|>");
}

TEST_F(TokenizerFile, Llama3sRanksHaveItsSpecialTokens) {
  std::vector<std::string> tokens = all_bytes_and({});
  for (int i = 0; tokens.size() < 128'000; ++i) {
    tokens.push_back(
        {static_cast<char>(i), static_cast<char>(i >> 8), static_cast<char>(i >> 16), '\xFF'});
  }
  const Tokenizer tokenizer = read(rank_lines(tokens), "llama3");
  EXPECT_EQ(tokenizer.vocabulary(), 128'256);
  EXPECT_EQ(tokenizer.decode(Ids{128'000, 128'001, 128'005, 128'006, 128'009, 128'255}),
            "<|begin_of_text|><|end_of_text|><|reserved_special_token_3|><|start_header_id|>"
            "<|eot_id|><|reserved_special_token_250|>");
  EXPECT_EQ(tokenizer.separator(), 128'001);
  EXPECT_THAT(tokenizer.encode("<|eot_id|>a"), ElementsAre(128'009, 'a'));
}

TEST_F(TokenizerFile, PublishedRanksEndTextsWhereTiktokenDoes) {
  struct Case {
    std::size_t ranks;
    std::int64_t separator;
    std::int64_t vocabulary;
  };
  for (const auto& [ranks, separator, vocabulary] : {Case{50'256, 50'256, 50'257},
                                                     {50'280, 50'256, 50'281},
                                                     {100'256, 100'257, 100'277},
                                                     {199'998, 199'999, 200'019},
                                                     {300, 300, 301}}) {
    std::string lines = rank_lines(all_bytes_and({}));
    for (std::size_t i = 256; i < ranks; ++i) {
      const std::size_t rank = i + (ranks == 50'280 && i >= 50'256 ? 1 : 0);
      lines += base64({static_cast<char>(i), static_cast<char>(i >> 8U), '\xFE', '\xFF',
                       static_cast<char>(i >> 16U)}) +
               " " + std::to_string(rank) + "\n";
    }
    const Tokenizer tokenizer = read(lines, "o200k");
    EXPECT_EQ(tokenizer.separator(), separator);
    EXPECT_EQ(tokenizer.vocabulary(), vocabulary);
    EXPECT_EQ(tokenizer.decode(Ids{separator}), "<|endoftext|>");
    if (ranks == 50'280 || ranks == 100'256) {  // unused ids stay unused in files
      const auto files = write_tokenizer_files(tokenizer, directory_.path());
      const Tokenizer again = Tokenizer::from_file(files.at(0));
      EXPECT_EQ(again.vocabulary(), vocabulary);
      EXPECT_EQ(again.separator(), separator);
    }
  }
  EXPECT_THAT(
      error_of([&] { (void)read(rank_lines(all_bytes_and({})), "lama3"); }, ExitCode::kUsage),
      HasSubstr("--split-pattern is \"lama3\""));
  EXPECT_THAT(read(rank_lines(all_bytes_and({"ab", "bc"})), "[ab]|c").encode("abc"),
              ElementsAre('a', 'b', 'c'));
}

// Of Hugging Face's library for these files.
TEST_F(TokenizerFile, AddedTokensAreFoundAsTheirFlagsSay) {
  struct Case {
    json flags;  // of <x>, which is 261
    const char* text;
    Ids ids;      // with special tokens
    Ids as_text;  // without; the same where empty
  };
  const auto token = [](json flags) { return flags; };
  for (const auto& [flags, text, ids, as_text] :
       std::vector<Case>{{token({{"special", true}}),
                          "a <x> the",
                          {'a', ' ', 261, 258},
                          {'a', ' ', '<', 'x', '>', 258}},
                         {token({{"special", false}}), "a <x> the", {'a', ' ', 261, 258}, {}},
                         {token({{"special", false}, {"lstrip", true}}),
                          "a \t\u00a0<x> the",
                          {'a', 261, 258},
                          {}},
                         {token({{"special", false}, {"rstrip", true}}),
                          "a <x> \n the<x>  ",
                          {'a', ' ', 261, 257, 261},
                          {}},
                         {token({{"special", false}, {"lstrip", true}, {"rstrip", true}}),
                          " <x> <x> the",
                          {261, 261, 257},
                          {}},
                         {token({{"special", false}, {"single_word", true}}),
                          "a<x> <x>é <x>\u0301 <x>. <x>_<x>",
                          {'a',  '<',  'x', '>', ' ', '<', 'x', '>', 0xC3, 0xA9, ' ', '<', 'x', '>',
                           0xCC, 0x81, ' ', 261, '.', ' ', '<', 'x', '>',  '_',  '<', 'x', '>'},
                          {}}}) {
    json file = small_json();
    file["added_tokens"].push_back({{"id", 261}, {"content", "<x>"}});
    file["added_tokens"][1].update(flags);
    const Tokenizer tokenizer = read(file.dump());
    EXPECT_EQ(tokenizer.encode(text), ids) << flags;
    EXPECT_EQ(tokenizer.encode(text, Markers::kAsText), as_text.empty() ? ids : as_text) << flags;
    const Tokenizer from_data = stored(directory_, directory_ / "file", "");
    EXPECT_EQ(from_data.encode(text), ids) << flags;
    const auto files = write_tokenizer_files(from_data, directory_.path());
    std::ifstream written(files.at(0));
    const json again = json::parse(written).at("added_tokens").at(1);
    for (const auto& [name, value] : flags.items()) {
      EXPECT_EQ(again.at(name), value) << flags;
    }
  }
}

// Of Hugging Face's library: a byte's token may be an added one, and stays that byte's in words.
TEST_F(TokenizerFile, AddedTokensMayBeThoseOfBytes) {
  json file = small_json();
  const json id = file["model"]["vocab"]["t"];
  file["added_tokens"].push_back(
      {{"id", id}, {"content", "t"}, {"special", false}, {"single_word", true}});
  EXPECT_THAT(read(file.dump()).encode("to the t"), ElementsAre(id, 'o', 258, ' ', id));
}

// Of Hugging Face's library, which takes a token in normalized text where it is said to be there.
TEST_F(TokenizerFile, TextIsNormalizedBetweenTokens) {
  json file = small_json();
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"].push_back({{"id", 261}, {"content", "e\u0301>"}, {"special", false}});
  file["added_tokens"].push_back(
      {{"id", 262}, {"content", "i\u0301"}, {"special", false}, {"normalized", true}});
  const Tokenizer tokenizer = read(file.dump());
  EXPECT_THAT(tokenizer.encode("e\u0301>\u0338the e\u0301 i\u0301\u00ed"),
              ElementsAre(261, 0xCC, 0xB8, 257, ' ', 0xC3, 0xA9, ' ', 262, 262));
  // Hangul's vowels compose with what is before them.
  EXPECT_THAT(tokenizer.encode("\u1100\u1161\u11a8"), ElementsAre(0xEA, 0xB0, 0x81));
  EXPECT_EQ(stored(directory_, directory_ / "file", "").encode("e\u0301"), (Ids{0xC3, 0xA9}));
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  EXPECT_THAT(read(file.dump()).encode("e\u0301"), ElementsAre('e', 0xCC, 0x81));
}

TEST_F(TokenizerFile, TokensOfFilesBesideItAreAdded) {
  const auto config = [&](const json& decoder) {
    write_file(directory_ / "tokenizer_config.json",
               json{{"added_tokens_decoder", decoder}, {"eos_token", "<end>"}}.dump());
  };
  const json start = {{"content", "<start>"}, {"special", true}, {"rstrip", true}};
  config({{"260", {{"content", "<|endoftext|>"}, {"special", true}, {"normalized", true}}},
          {"261", start}});
  write_file(directory_ / "added_tokens.json", R"({"<start>": 261, "<end>": 262, "<tool>": 264})");
  test::write_pairs(directory_, small_pairs());
  for (const bool pairs : {false, true}) {
    const Tokenizer tokenizer =
        pairs ? Tokenizer::gpt2(directory_ / "encoder.json", directory_ / "vocab.bpe")
              : read(small_json().dump());
    EXPECT_EQ(tokenizer.vocabulary(), 265);
    EXPECT_EQ(tokenizer.separator(), 260);
    EXPECT_THAT(tokenizer.encode("<start> the<end><tool>"), ElementsAre(261, 257, 262, 264));
    // The end has a role, so it is special; the tool has none.
    EXPECT_THAT(tokenizer.encode("<end><tool>", Markers::kAsText),
                ElementsAre('<', 'e', 'n', 'd', '>', 264));
    EXPECT_EQ(tokenizer.decode(Ids{261, 263, 264}), "<start><tool>");
  }
  std::filesystem::remove(directory_ / "added_tokens.json");
  for (const auto& [decoder, words] : std::vector<std::pair<json, std::vector<std::string>>>{
           {{{"257", start}}, {"\"<start>\" the id 257", "\"the\""}},
           {{{"259", {{"content", "the"}}}}, {"\"the\" the id 259", "the id 257"}},
           {{{"900", start}}, {"\"<start>\" the id 900", "below 524"}},
           {{{"x", start}}, {"tokenizer_config.json", "an id were expected"}},
           {{{"261", "x"}}, {"tokenizer_config.json", "a content"}},
           {{{"261", start}, {"262", start}}, {"\"<start>\" twice"}}}) {
    config(decoder);
    const std::string message = problem(small_json().dump());
    for (const std::string& word : words) {
      EXPECT_THAT(message, HasSubstr(word)) << decoder;
    }
  }
}

// The words are those of Hugging Face's library.
TEST_F(TokenizerFile, SplitsTextAsPublishedFilesDo) {
  const auto split = [](const std::string& expression, const char* behavior = "Isolated",
                        bool invert = false) {
    return json{{"type", "Split"},
                {"pattern", {{"Regex", expression}}},
                {"behavior", behavior},
                {"invert", invert}};
  };
  const std::string llama3(kLlama3Expression);
  std::string qwen = llama3;
  qwen.replace(qwen.find("{1,3}"), 5, "");
  const json deepseek = {
      split(R"(\p{N}{1,3})"), split("[一-龥\u3040-ゟ゠-ヿ]+"),
      split("[!\"#$%&'()*+,\\-./"
            ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")};
  const std::string first = "Don'T stop: 12345 HelloWorld's\n\n  x\u180ey\u0085\u00a0z !?/\n";
  const std::string second = "你好，世界123456 ひらがな x_y [a]Z 'tis";
  struct Case {
    json steps;
    std::string text;
    std::vector<std::string> words;
  };
  for (const auto& [steps, text, words] : std::vector<Case>{
           {{split(qwen)},
            first,
            {"Don", "'T", " stop", ":", " ", "1", "2", "3", "4", "5", " HelloWorld", "'s", "\n\n",
             " ", " x", "\u180ey", "\u0085", "\u00a0z", " !?/\n"}},
           {{split(llama3, "Removed", true)},
            first,
            {"Don", "'T", " stop", ":", " ", "123", "45", " HelloWorld", "'s", "\n\n", " ", " x",
             "\u180ey", "\u0085", "\u00a0z", " !?/\n"}},
           {{split(std::string(kPublishedExpressions[2].text))},
            first,
            {"Don'T", " stop", ":", " ", "123", "45", " Hello", "World's", "\n\n", " ", " x",
             "\u180ey", "\u0085", "\u00a0z", " !?/\n"}},
           {deepseek,
            second,
            {"你好", "，", "世界", "123", "456", " ", "ひらがな", " x", "_y", " [", "a", "]Z", " '",
             "tis"}},
           {deepseek,
            "naïve e\u0301\u0308\r\n \t end  ",
            {"naïve", " e\u0301\u0308", "\r\n", " \t", " end", "  "}},
           {{split("b+", "Removed")}, "abba", {"a", "a"}},
           {{split("b+", "Removed", true)}, "abbab", {"bb", "b"}},
           {{split("(?=b)")}, "abab", {"a", "ba", "b"}},
           {{split("^b")}, "bab\nb", {"b", "ab\n", "b"}},
           {{{{"type", "Split"}, {"pattern", {{"String", "b."}}}, {"behavior", "Isolated"}}},
            "abcb.",
            {"abc", "b."}},
           {{{{"type", "Digits"}, {"individual_digits", true}}}, "a12½", {"a", "1", "2", "½"}},
           {{{{"type", "Digits"}}}, "a12½", {"a", "12½"}}}) {
    // Every word is a token, so that ids show the words.
    json file = small_json();
    Ids ids;
    const ByteCharacters characters;
    for (const std::string& word : words) {
      json& id = file["model"]["vocab"][characters.text_of(word)];
      id = id.is_null() ? json(file["model"]["vocab"].size()) : id;
      ids.push_back(id.get<std::int64_t>());
    }
    file["model"]["ignore_merges"] = true;
    json list = steps;
    list.push_back({{"type", "ByteLevel"}, {"use_regex", false}});
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", list}};
    const Tokenizer tokenizer = read(file.dump());
    EXPECT_EQ(tokenizer.encode(text), ids) << steps;
    const Tokenizer from_data = stored(directory_, directory_ / "file", "", text);
    EXPECT_EQ(from_data.encode(text), ids) << steps;
    EXPECT_EQ(test::tokens_of(Dataset::open(directory_ / "out/train.h5")), ids) << steps;
    EXPECT_EQ(tokenizer_checksum(from_data), tokenizer_checksum(tokenizer));
    EXPECT_EQ(Tokenizer::from_file(write_tokenizer_files(from_data, directory_.path()).at(0))
                  .encode(text),
              ids)
        << steps;
  }
}

TEST_F(TokenizerFile, RefusesRanksWithTheirLine) {
  const std::string good = rank_lines(all_bytes_and({"ab"}));
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {good + "YWI= 257\n", {"\"ab\" twice", "256 and 257"}},
           {good + "eHk= 256\n", {"line 258 repeats the rank 256 of line 257"}},
           {good + "eHk= 300\n", {"line 258 has the rank 300", "0 to 257"}},
           {good + "eHk 257\n", {"line 258", "base64"}},
           {good + "e=k= 257\n", {"line 258", "base64"}},
           {good + "eHk= -1\n", {"line 258"}},
           {good + "eHk=\n", {"line 258"}},
           {good + "eHk= 1x\n", {"line 258"}},
           {good + "==== 257\n", {"line 258"}},
           {good + base64("<|endoftext|>") + " 257\n", {"special token <|endoftext|>"}},
           {"hello\n", {"line 1", "tokenizer.json"}},
           {"YWI= 0\n", {"no token for the byte 0"}},
           {"", {"no token for the byte 0"}}}) {
    const std::string message = problem(text, "gpt2");
    for (const std::string& word : words) {
      EXPECT_THAT(message, HasSubstr(word));
    }
  }
  EXPECT_THAT(error_of([&] { (void)read(good); }, ExitCode::kUsage),
              AllOf(HasSubstr("ranks"), HasSubstr("--split-pattern=gpt2, llama3")));
}

TEST_F(TokenizerFile, RefusesWhatIsNoModelOfSentencePiece) {
  // The second text is for builds without the library.
  EXPECT_THAT([&] { (void)read("\n\x05hello"); }, ::testing::ThrowsMessage<Error>(::testing::AnyOf(
                                                      HasSubstr("no model of SentencePiece"),
                                                      HasSubstr("built without that library"))));
}

TEST_F(TokenizerFile, DataSetsStoreTokenizersAndFilesAreWrittenBack) {
  struct Case {
    std::string text;
    std::string pattern;
  };
  json llama3 = small_json();
  llama3["pre_tokenizer"] = llama3_splitter();
  llama3["model"]["ignore_merges"] = true;
  for (const auto& [text, pattern] : {Case{small_json().dump(), ""}, Case{llama3.dump(), ""},
                                      Case{rank_lines(all_bytes_and({"th", "the"})), "llama3"}}) {
    const Tokenizer tokenizer = read(text, pattern);
    const Tokenizer from_data = stored(directory_, directory_ / "file", pattern);
    EXPECT_EQ(tokenizer_checksum(from_data), tokenizer_checksum(tokenizer));
    const auto files = write_tokenizer_files(from_data, directory_.path());
    ASSERT_THAT(files,
                ElementsAre(directory_ / "tokenizer.json", directory_ / "tokenizer_config.json"));
    const Tokenizer again = Tokenizer::from_file(files[0]);
    if (pattern.empty()) {  // the order of ranks becomes a list
      EXPECT_EQ(tokenizer_checksum(again), tokenizer_checksum(tokenizer));
    }
    for (const char* sample : {"the other 12345 I'LL\n\n  aaa", "<|endoftext|>the"}) {
      EXPECT_EQ(again.encode(sample), tokenizer.encode(sample));
      EXPECT_EQ(from_data.encode(sample), tokenizer.encode(sample));
    }
  }
}

TEST_F(TokenizerFile, TemplatesFrameDocuments) {
  using Frame = std::vector<std::uint32_t>;
  const json offsets = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  const json begin = framed({"<|begin|>", "A"});
  struct Case {
    json processor;
    Frame before;
    Frame after;
    /// Of the documents "the" and "a", or without a separator.
    Ids tokens;
    Separator separator = Separator::kAuto;
  };
  for (const auto& [processor, before, after, tokens, separator] : std::vector<Case>{
           {nullptr, {}, {}, {257, 260, 'a'}},
           {offsets, {}, {}, {257, 260, 'a'}},
           {begin, {261}, {}, {261, 257, 260, 261, 'a'}},
           {begin, {261}, {}, {257, 'a'}, Separator::kNo},
           {{{"type", "Sequence"}, {"processors", {offsets, begin}}},
            {261},
            {},
            {261, 257, 260, 261, 'a'}},
           {{{"type", "Sequence"}, {"processors", {framed({"A", "<|begin|>"}), begin}}},
            {261},
            {261},
            {261, 257, 261, 260, 261, 'a', 261}},
           // No second separator.
           {framed({"<|begin|>", "A", "<|endoftext|>"}),
            {261},
            {260},
            {261, 257, 260, 261, 'a', 260}},
           {framed({"<|endoftext|>", "A"}), {260}, {}, {260, 257, 260, 'a'}}}) {
    json file = small_json();
    file["added_tokens"].push_back({{"id", 261}, {"content", "<|begin|>"}});
    file["post_processor"] = processor;
    const Tokenizer tokenizer = read(file.dump());
    EXPECT_EQ(tokenizer.frame(), (DocumentFrame{before, after}));
    EXPECT_THAT(tokenizer.encode("the"), ElementsAre(257));
    ImportOptions options =
        test::text_options(directory_, TokenizerKind::kNone, {"the", "a"}, "1.0");
    options.tokenizer_file = directory_ / "file";
    options.separator = separator;
    options.existing = Existing::kReplace;
    import_dataset(options);
    const Dataset data = Dataset::open(options.output / "train.h5");
    EXPECT_EQ(test::tokens_of(data), tokens) << processor;
    const Tokenizer from_data = Tokenizer::of(data.info());
    EXPECT_EQ(from_data.frame(), tokenizer.frame());
    const auto again = write_tokenizer_files(from_data, directory_.path());
    EXPECT_EQ(Tokenizer::from_file(again.at(0)).frame(), tokenizer.frame());
  }
}

TEST_F(TokenizerFile, ClassesOfLlamaHaveTheFrameOfTheirConfig) {
  const json llama{{"tokenizer_class", "LlamaTokenizerFast"},
                   {"bos_token", {{"content", "<|begin|>"}}},
                   {"eos_token", "<|endoftext|>"}};
  using Words = std::vector<std::uint32_t>;
  for (const auto& [changes, before, after] : std::vector<std::tuple<json, Words, Words>>{
           {json::object(), {261}, {}},
           {{{"add_bos_token", nullptr}, {"add_eos_token", true}}, {261}, {260}},
           {{{"add_bos_token", false}}, {}, {}},
           {{{"bos_token", nullptr}}, {260}, {}},
           {{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_bos_token", false}},
            {260},
            {260}}}) {
    json config = llama;
    config.update(changes);
    write_file(directory_ / "tokenizer_config.json", config.dump());
    json file = small_json();
    file["added_tokens"].push_back({{"id", 261}, {"content", "<|begin|>"}});
    file["post_processor"] = framed({"<|endoftext|>", "A", "<|endoftext|>"});
    const DocumentFrame frame = read(file.dump()).frame();
    EXPECT_EQ(frame.before, before) << config;
    EXPECT_EQ(frame.after, after) << config;
  }
}

TEST_F(TokenizerFile, OtherKindsAreWrittenToo) {
  test::write_pairs(directory_, small_pairs());
  const Tokenizer gpt2 = Tokenizer::gpt2(directory_ / "encoder.json", directory_ / "vocab.bpe");
  const auto file = write_tokenizer_files(gpt2, directory_.path());
  const Tokenizer again = Tokenizer::from_file(file.at(0));
  EXPECT_EQ(tokenizer_checksum(again), tokenizer_checksum(gpt2));
  EXPECT_EQ(again.separator(), gpt2.separator());
  EXPECT_EQ(again.encode("the<|endoftext|> aaa"), gpt2.encode("the<|endoftext|> aaa"));
  // The class that takes a tokenizer.json as it stands.
  std::ifstream written(directory_ / "tokenizer_config.json");
  EXPECT_EQ(json::parse(written),
            (json{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"eos_token", "<|endoftext|>"}}));
  const auto bytes = write_tokenizer_files(Tokenizer::bytes(), directory_.path());
  EXPECT_THAT(Tokenizer::from_file(bytes.at(0)).encode("the\n"), ElementsAre('t', 'h', 'e', '\n'));
  EXPECT_TRUE(write_tokenizer_files(Tokenizer::chars({U'a'}), directory_.path()).empty());
}

TEST(TextEncoder, FindsTokensInPieces) {
  const TemporaryDirectory directory;
  json file = small_json();
  file["normalizer"] = {{"type", "NFC"}};
  file["pre_tokenizer"] = llama3_splitter();
  file["pre_tokenizer"]["pretokenizers"].insert(
      file["pre_tokenizer"]["pretokenizers"].begin(),
      json{{"type", "Digits"}, {"individual_digits", true}});
  const auto add = [&](const char* text, json flags) {
    flags.update({{"id", 260 + file["added_tokens"].size()}, {"content", text}});
    file["added_tokens"].push_back(flags);
  };
  add("<|endoftext|>x", {});
  add("<l>", {{"lstrip", true}, {"special", false}});
  add("<r>", {{"rstrip", true}, {"special", false}});
  add("<s>", {{"single_word", true}, {"special", false}});
  add("dof", {{"special", false}});
  add("<n\u0301>", {{"normalized", true}, {"special", false}, {"single_word", true}});
  write_file(directory / "tokenizer.json", file.dump());
  const Tokenizer tokenizer = Tokenizer::from_file(directory / "tokenizer.json");
  const std::string text =
      "the  <|endoftext|>the é<|endoftext|>x <|endof <|endoftext|> 123 e\u0301 \n<l> \n <r> \n the"
      "<s> <s>.<s>a <n\u0301>b <n\u0301> dof \u1100\u1161";
  for (const Markers markers : {Markers::kRecognised, Markers::kAsText}) {
    const Ids whole = tokenizer.encode(text, markers);
    const bool found = markers == Markers::kRecognised;
    EXPECT_EQ(std::ranges::count(whole, 260), found ? 2 : 0);
    EXPECT_EQ(std::ranges::count(whole, 261), found ? 1 : 0);
    EXPECT_EQ(std::ranges::count(whole, 264), 1);  // the second <s>
    EXPECT_EQ(std::ranges::count(whole, 265), 2);  // dof, not within <|endoftext|>
    EXPECT_EQ(std::ranges::count(whole, 266), 1);
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
      const auto is_inside = [&](std::size_t at) {
        return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
      };
      // Two pieces, and pieces of some bytes.
      for (const std::size_t step : {text.size(), cut % 9 + 1}) {
        const auto encoder = text_encoder(tokenizer.contents(), markers);
        std::vector<std::uint32_t> ids;
        std::size_t used = 0;
        for (std::size_t end = cut; end < text.size(); end += step) {
          if (!is_inside(end)) {
            used += encoder->encode(text.substr(used, end - used), End::kNotYet, ids);
          }
        }
        encoder->encode(text.substr(used), End::kReached, ids);
        EXPECT_EQ(Ids(ids.begin(), ids.end()), whole) << cut << " " << step;
      }
    }
  }
}

}  // namespace
}  // namespace strata::io::tokenizer_file_test
