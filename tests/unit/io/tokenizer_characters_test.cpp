#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "strata/io/tokenizer.hpp"

#include "text_files.hpp"
#include "tokenizer/text_encoder.hpp"
#include "tokenizer/tokenizer_contents.hpp"

// Files of tokenizers whose tokens are of characters, as those converted from SentencePiece's.
namespace strata::io::tokenizer_characters_test {
namespace {

using nlohmann::json;
using test::error_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ids = std::vector<std::int64_t>;
/// Values by their place in a file.
using Changes = std::vector<std::pair<const char*, json>>;

std::string byte_token(int byte) {
  return fmt::format("<0x{:02X}>", byte);
}

json added(int id, const char* text, const json& flags = json::object()) {
  json token = {{"id", id}, {"content", text}, {"special", true}, {"normalized", false}};
  token.update(flags);
  return token;
}

json metaspace(const char* scheme, bool split) {
  return {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", split}};
}

json sequence(const char* list, const json& steps) {
  return {{"type", "Sequence"}, {list, steps}};
}

json replace(const char* kind, const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{kind, from}}}, {"content", to}};
}

const json kPrepend = {{"type", "Prepend"}, {"prepend", "▁"}};
const json kMarks = replace("String", " ", "▁");
const json kSplitAtSpaces = {
    {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}};

/// In Llama 2's form: <unk> 0, <s> 1, </s> 2, the bytes 3 to 258, and pieces.
json pairs() {
  json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[byte_token(byte)] = 3 + byte;
  }
  int id = 259;
  for (const char* piece : {"▁", "a", "b", "c", "t", "h", "e", "ab", "bc", "abc", "th", "the",
                            "▁the", "▁a", "aa", "▁▁"}) {
    vocabulary[piece] = id++;
  }
  return {{"added_tokens", {added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")}},
          {"normalizer", sequence("normalizers", {kPrepend, kMarks})},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}}}}}}},
          {"decoder", sequence("decoders",
                               {replace("String", "▁", " "),
                                {{"type", "ByteFallback"}},
                                {{"type", "Fuse"}},
                                {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", json::parse(R"([["b","c"],["a","b"],["ab","c"],"a bc",["t","h"],["th","e"],
                                   ["▁","the"],["▁","a"],["a","a"],["▁","▁"]])")}}}};
}

json unigram() {
  json file = pairs();
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] = metaspace("always", true);
  file["decoder"] = metaspace("always", true);
  file["model"] = {{"type", "Unigram"},
                   {"unk_id", 0},
                   {"byte_fallback", false},
                   {"vocab", json::parse(R"([["<unk>",0],["<s>",0],["</s>",0],["▁",-2],["a",-3],
                             ["b",-3],["ab",-6],["▁the",-3.5],["t",-4],["h",-4],["e",-4],["th",-5],
                             ["▁a",-5],["aa",-5.5],["ba",-6],["\"",-4.5]])")}};
  return file;
}

/// The map of A to a and of a no-break space to a space, in base64.
std::string character_map() {
  std::string units(1024, '\0');
  const auto set = [&](std::size_t unit, std::uint32_t bits) {
    for (std::size_t i = 0; i < 4; ++i) {
      units[4 * unit + i] = static_cast<char>(bits >> 8U * i);
    }
  };
  constexpr std::uint32_t kLeaf = 1U << 8U;
  set('A', 0x40U << 10U | kLeaf | 'A');
  set('A' ^ 0x40U, 1U << 31U);
  set(0xC2, 0x20U << 10U | 0xC2U);
  set(0xC2U ^ 0x20U ^ 0xA0U, 0x41U << 10U | kLeaf | 0xA0U);
  set(0xC2U ^ 0x20U ^ 0xA0U ^ 0x41U, 1U << 31U | 2U);
  return std::string("\0\x04\0\0", 4) + units + std::string("a\0 \0", 4);
}

std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      bits = bits << 8U | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0U);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[bits >> (18U - 6U * j) & 63U];
    }
  }
  return text;
}

json changed(json file, const Changes& changes) {
  for (const auto& [pointer, value] : changes) {
    file[json::json_pointer(pointer)] = value;
  }
  return file;
}

Tokenizer read(const TemporaryDirectory& directory, const json& file) {
  write_file(directory / "tokenizer.json", file.dump());
  return Tokenizer::from_file(directory / "tokenizer.json");
}

/// The ids of a text that comes in pieces of so many bytes.
Ids encoded_in_pieces(const Tokenizer& tokenizer, const std::string& text, std::size_t bytes) {
  const auto encoder = text_encoder(tokenizer.contents(), Markers::kRecognised);
  std::vector<std::uint32_t> ids;
  std::size_t used = 0;
  for (std::size_t end = bytes; end < text.size(); end += bytes) {
    if ((static_cast<unsigned char>(text[end]) & 0xC0U) != 0x80U) {
      used += encoder->encode(text.substr(used, end - used), End::kNotYet, ids);
    }
  }
  encoder->encode(text.substr(used), End::kReached, ids);
  return {ids.begin(), ids.end()};
}

// Ids and decoded texts are those of Hugging Face's library.
TEST(TokenizerCharacters, FilesGiveTheIdsOfTheirLibrary) {
  struct Case {
    json file;
    Changes changes;
    std::string text;
    Ids ids;
    std::string decoded;
  };
  const TemporaryDirectory directory;
  const json bpe = pairs();
  const json uni = unigram();
  json with_bytes = uni["model"]["vocab"];
  for (int byte = 0; byte < 256; ++byte) {
    with_bytes.push_back({byte_token(byte), 0.0});
  }
  const auto before = [](const char* scheme, bool split) {
    return Changes{{"/normalizer", nullptr}, {"/pre_tokenizer", metaspace(scheme, split)}};
  };
  const Changes first = before("first", false);
  const Changes gemma = {{"/normalizer", kMarks}, {"/pre_tokenizer", kSplitAtSpaces}};
  const Changes merged = {{"/normalizer", nullptr},
                          {"/model/byte_fallback", false},
                          {"/pre_tokenizer", kSplitAtSpaces}};
  const Changes whole = {{"/model/ignore_merges", true}, {"/model/merges", json::array()}};
  const Changes normalized = {
      {"/added_tokens/2", added(2, "</s>", {{"normalized", true}})},
      {"/added_tokens/3", added(275, "<x>", {{"normalized", true}, {"special", false}})}};
  const Changes nfkc = {
      {"/normalizer",
       sequence("normalizers", {{{"type", "NFKC"}},
                                replace("Regex", " {2,}", " "),
                                {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}},
                                kPrepend,
                                kMarks})}};
  const Changes lower = {{"/normalizer", sequence("normalizers", {{{"type", "NFKD"}},
                                                                  {{"type", "StripAccents"}},
                                                                  {{"type", "Lowercase"}}})}};
  const Changes map = {
      {"/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", base64(character_map())}}},
      {"/pre_tokenizer", metaspace("always", false)}};
  const Changes t5 = {{"/pre_tokenizer", sequence("pretokenizers", {{{"type", "WhitespaceSplit"}},
                                                                    metaspace("always", true)})}};
  const Changes quotes = {
      {"/normalizer",
       sequence("normalizers", {replace("String", "``", "\""), replace("String", "''", "\"")})}};
  const Changes fallback = {{"/model/byte_fallback", true}, {"/model/vocab", with_bytes}};
  const std::string both = "the abc</s>the é\n";
  for (const auto& [file, changes, text, ids, decoded] : std::vector<Case>{
           {bpe, {}, both, {271, 259, 268, 2, 271, 259, 198, 172, 13}, "the abc</s> the é\n"},
           {bpe, {}, "", {}, ""},
           {bpe, {}, "  the", {274, 271}, "  the"},
           {bpe, {}, "a</s> a", {272, 2, 259, 272}, "a</s>  a"},
           {bpe, {}, "abab", {259, 266, 266}, "abab"},
           {bpe, first, both, {271, 259, 268, 2, 270, 259, 198, 172, 13}, "the abc</s>the é\n"},
           {bpe, first, "</s>the", {2, 270}, "</s>the"},
           {bpe, first, "▁the", {271}, "the"},
           {bpe, before("always", false), "a</s>the", {272, 2, 271}, "a</s> the"},
           {bpe, before("never", true), "the  the", {270, 259, 271}, "the  the"},
           {bpe, gemma, "the  a é", {270, 259, 272, 259, 198, 172}, "the  a é"},
           {bpe, gemma, " a", {272}, "a"},
           {bpe, merged, "a  b ab", {260, 0, 0, 261, 0, 266}, "a<unk><unk>b<unk>ab"},
           {bpe, merged, " a", {0, 260}, "<unk>a"},
           {bpe, {{"/model/byte_fallback", false}}, "x yxa", {259, 0, 259, 0, 260}, "<unk> <unk>a"},
           {bpe,
            {{"/model/byte_fallback", false}, {"/model/fuse_unk", false}},
            "xya",
            {259, 0, 0, 260},
            "<unk><unk>a"},
           {bpe, whole, "the", {271}, "the"},
           {bpe, whole, "the a", {259, 263, 264, 265, 259, 260}, "the a"},
           {bpe, normalized, "</s>a", {2, 260}, "</s>a"},
           {bpe, normalized, "a</s>", {272, 63, 50, 118, 65}, "a</s>"},
           {bpe, normalized, "a <x> b", {272, 275, 259, 261}, "a <x> b"},
           {bpe, nfkc, "  ａ  the \u00a0b  ", {272, 271, 259, 261}, "a the b"},
           {bpe, lower, "ÀÉTHE", {260, 265, 270}, "aethe"},
           {bpe, map, "A\u00a0theA", {272, 271, 260}, "a thea"},
           {uni, {}, "the ab", {7, 3, 6}, "the ab"},
           {uni, {}, "baab", {3, 5, 13, 5}, "baab"},
           {uni, {}, "xx a</s>a", {3, 0, 12, 2, 12}, "<unk> a</s> a"},
           {uni, {}, "▁▁a", {3, 12}, " a"},
           {uni, {}, "  a  ", {3, 12, 3, 3}, " a  "},
           {uni, fallback, "é a", {3, 211, 185, 12}, "<0xC3><0xA9> a"},
           {uni, t5, "  the\t\n a ▁a a▁ b ", {7, 12, 12, 12, 3, 3, 5}, "the a a a  b"},
           {uni, quotes, "``a''", {3, 15, 4, 15}, "\"a\""},
           {uni,
            {{"/pre_tokenizer", metaspace("first", false)}},
            "the the</s>a",
            {7, 7, 2, 4},
            "the the</s>a"}}) {
    SCOPED_TRACE(json(changes).dump() + " " + text);
    const Tokenizer tokenizer = read(directory, changed(file, changes));
    EXPECT_EQ(tokenizer.encode(text), ids);
    EXPECT_EQ(tokenizer.decode(ids), decoded);
    for (const std::size_t bytes : {1, 2, 3, 7}) {
      EXPECT_EQ(encoded_in_pieces(tokenizer, text, bytes), ids) << bytes;
    }
    // The same from a data set, and from the file that is written of it.
    ImportOptions options =
        test::text_options(directory, TokenizerKind::kNone, {text + "a"}, "1.0");
    options.tokenizer_file = directory / "tokenizer.json";
    options.existing = Existing::kReplace;
    import_dataset(options);
    const Tokenizer stored = Tokenizer::of(Dataset::open(options.output / "train.h5").info());
    const Tokenizer again =
        Tokenizer::from_file(write_tokenizer_files(stored, directory.path()).at(0));
    for (const Tokenizer* other : {&stored, &again}) {
      EXPECT_EQ(other->encode(text), ids);
      EXPECT_EQ(other->decode(ids), decoded);
      EXPECT_EQ(other->frame(), tokenizer.frame());
      EXPECT_EQ(other->separator(), 2);
      EXPECT_EQ(tokenizer_checksum(*other), tokenizer_checksum(tokenizer));
    }
  }
}

// Decoded, </s> would be another text, which programs add beyond the vocabulary.
TEST(TokenizerCharacters, RolesHaveTheTextsOfTheirTokens) {
  const TemporaryDirectory directory;
  json file = changed(pairs(), {{"/added_tokens/2", added(2, "</s>", {{"normalized", true}})}});
  file["decoder"]["decoders"].erase(3);
  const Tokenizer tokenizer = read(directory, file);
  EXPECT_EQ(tokenizer.decode(Ids{2}), " </s>");
  write_tokenizer_files(tokenizer, directory.path());
  std::ifstream written(directory / "tokenizer_config.json");
  EXPECT_EQ(json::parse(written), (json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                        {"bos_token", "<s>"},
                                        {"eos_token", "</s>"}}));
}

// As in Gemma's file, where </s> is one of the tokens for HTML.
TEST(TokenizerCharacters, SpecialTokensAloneSeparateDocuments) {
  const TemporaryDirectory directory;
  const json file = changed(
      pairs(), {{"/added_tokens/2/special", false}, {"/added_tokens/3", added(275, "<eos>")}});
  EXPECT_EQ(read(directory, file).separator(), 275);
}

TEST(TokenizerCharacters, SpecialTokensComeOfNoText) {
  const TemporaryDirectory directory;
  json file = changed(pairs(), {{"/model/vocab/<", 275}, {"/model/vocab/s>", 276}});
  file["model"]["merges"].push_back({"<", "s>"});
  for (const json& kind : {file, unigram()}) {
    const Tokenizer tokenizer = read(directory, kind);
    const Ids ids = tokenizer.encode("<s>", Markers::kAsText);
    EXPECT_EQ(std::ranges::count(ids, 1), 0);
    EXPECT_THAT(tokenizer.encode("<s>"), ElementsAre(1));
  }
}

// A dialogue that spells a special token is encoded in parts, which follow the template's tokens.
TEST(TokenizerCharacters, MetaspaceMarksTheBeginOfADialogueAlone) {
  const TemporaryDirectory directory;
  const json file = changed(pairs(), {{"/normalizer", nullptr},
                                      {"/pre_tokenizer", metaspace("first", false)},
                                      {"/added_tokens/3", added(275, "<|im_start|>")},
                                      {"/added_tokens/4", added(276, "<|im_end|>")}});
  static_cast<void>(read(directory, file));
  const auto tokens = [&](const std::string& answer) {
    const json dialogue = {
        {"messages",
         {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", answer}}}}};
    ImportOptions options =
        test::text_options(directory, TokenizerKind::kNone, {dialogue.dump() + "\n"}, "1.0");
    options.format = ImportFormat::kChat;
    options.chat_template = "chatml";
    options.tokenizer_file = directory / "tokenizer.json";
    options.existing = Existing::kReplace;
    import_dataset(options);
    return test::tokens_of(Dataset::open(options.output / "train.h5"));
  };
  const Ids plain = tokens("the");
  const Ids spelled = tokens("the</s>");
  const auto the = std::ranges::find(plain, 270);
  ASSERT_NE(the, plain.end());
  EXPECT_EQ(Ids(plain.begin(), the), Ids(spelled.begin(), std::ranges::find(spelled, 270)));
  EXPECT_GT(spelled.size(), plain.size());
}

TEST(TokenizerCharacters, TextsWithoutSpacesNeedNoMoreMemory) {
  const TemporaryDirectory directory;
  const Tokenizer tokenizer = read(directory, pairs());
  const auto encoder = text_encoder(tokenizer.contents(), Markers::kRecognised);
  std::vector<std::uint32_t> ids;
  // No token holds two of these beside each other.
  const std::string text(1 << 16, 'x');
  EXPECT_GE(encoder->encode(text, End::kNotYet, ids), text.size() - 8);
  EXPECT_GE(ids.size(), text.size() - 8);
}

TEST(TokenizerCharacters, RefusesWhatIsNotSupportedByName) {
  struct Case {
    json file;
    const char* pointer;
    json value;
    std::vector<std::string> words;
  };
  const TemporaryDirectory directory;
  const json bpe = pairs();
  const json uni = unigram();
  json some_bytes = bpe["model"]["vocab"];
  some_bytes.erase(byte_token(7));
  std::string damaged = character_map();
  damaged.back() = 'x';
  const auto normalizers = [](const json& steps) { return sequence("normalizers", steps); };
  const auto pretokenizers = [](const json& steps) { return sequence("pretokenizers", steps); };
  const auto decoders = [](const json& steps) { return sequence("decoders", steps); };
  for (const auto& [file, pointer, value, words] : std::vector<Case>{
           {bpe, "/model/type", "WordPiece", {"type \"WordPiece\"", "tokens-"}},
           {bpe, "/model/type", "WordLevel", {"type \"WordLevel\""}},
           {bpe, "/model/dropout", 0.1, {"dropout 0.1"}},
           {bpe, "/model/continuing_subword_prefix", "##", {"continuing_subword_prefix \"##\""}},
           {bpe, "/model/end_of_word_suffix", "</w>", {"end_of_word_suffix \"</w>\""}},
           {bpe, "/model/fuse_unk", "yes", {"fuse_unk \"yes\"", "true or false"}},
           {bpe, "/model/unk_token", "<none>", {"unk_token \"<none>\"", "no token"}},
           {changed(bpe, {{"/model/byte_fallback", false}}),
            "/model/unk_token",
            nullptr,
            {"no token for unknown characters"}},
           {bpe, "/model/vocab", some_bytes, {"tokens of 255 bytes", "all 256"}},
           {bpe, "/model/vocab/zz", 270, {"the id 270 to two tokens"}},
           {bpe, "/model/merges/0", "b x", {"merge 0", "\"x\" is no token"}},
           {bpe, "/normalizer", {{"type", "BertNormalizer"}}, {"normalizer", "BertNormalizer"}},
           {bpe,
            "/normalizer",
            normalizers(json::array({{{"type", "Nmt"}}})),
            {"normalizer", "Nmt"}},
           {bpe, "/normalizer", replace("String", "", "x"), {"normalizer", "Replace"}},
           {bpe, "/normalizer", replace("Regex", "\\w", "x"), {"cannot apply", "\\w"}},
           {bpe,
            "/normalizer",
            {{"type", "Precompiled"}, {"precompiled_charsmap", "*"}},
            {"Precompiled"}},
           {bpe,
            "/normalizer",
            {{"type", "Precompiled"}, {"precompiled_charsmap", base64(damaged)}},
            {"character map", "damaged"}},
           {bpe, "/pre_tokenizer", {{"type", "BertPreTokenizer"}}, {"BertPreTokenizer"}},
           {bpe, "/pre_tokenizer", {{"type", "Punctuation"}}, {"Punctuation"}},
           {bpe, "/pre_tokenizer", metaspace("maybe", true), {"maybe", "always, first or never"}},
           {bpe, "/pre_tokenizer/type", "Metaspace", {"replacement of one character"}},
           {bpe,
            "/pre_tokenizer",
            pretokenizers({{{"type", "WhitespaceSplit"}}, metaspace("first", true)}),
            {"after WhitespaceSplit"}},
           {bpe,
            "/pre_tokenizer",
            pretokenizers({{{"type", "Digits"}}, metaspace("first", true)}),
            {"Metaspace", "after another one"}},
           {bpe, "/decoder", nullptr, {"decoder null"}},
           {bpe, "/decoder", {{"type", "WordPiece"}}, {"decoder", "WordPiece"}},
           {bpe,
            "/decoder",
            decoders({{{"type", "Fuse"}}, {{"type", "ByteFallback"}}}),
            {"decoder", "ByteFallback", "in this order"}},
           {bpe,
            "/decoder",
            decoders(
                json::array({{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})),
            {"decoder", "Strip"}},
           {uni, "/model/vocab", json::object(), {"Unigram without the list vocab"}},
           {uni, "/model/vocab/3", {"▁"}, {"token 3", "a text and its score"}},
           {uni, "/model/vocab/3", {"▁", "x"}, {"token 3", "a text and its score"}},
           {uni, "/model/vocab/3", {"a", -1.0}, {"the token \"a\" twice"}},
           {uni, "/model/vocab/3", {"", -1.0}, {"the token \"\", which is empty"}},
           {uni, "/model/unk_id", nullptr, {"no token for unknown characters"}},
           {uni, "/model/unk_id", 99, {"unk_id 99", "0 to 15"}}}) {
    SCOPED_TRACE(std::string(pointer) + " " + value.dump());
    const std::string message = error_of([&] {
      (void)read(directory, changed(file, {{pointer, value}}));
    });
    for (const std::string& word : words) {
      EXPECT_THAT(message, HasSubstr(word));
    }
  }
}

}  // namespace
}  // namespace strata::io::tokenizer_characters_test
