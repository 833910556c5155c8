#include "strata/io/tokenizer.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

#include "files/input_stream.hpp"
#include "files/posix_file.hpp"
#include "tokenizer/byte_characters.hpp"
#include "tokenizer/rank_file.hpp"
#include "tokenizer/text_encoder.hpp"
#include "tokenizer/tokenizer_contents.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace strata::io {
namespace {

constexpr std::int64_t kByteValues = 256;

void check_utf8(std::string_view text) {
  const Utf8Prefix prefix = utf8_prefix(text);
  if (prefix.rest != Utf8Prefix::Rest::kNothing) {
    fail(ExitCode::kData, "the text is not valid UTF-8 at its byte {} (counted from 0)",
         prefix.bytes);
  }
}

void encode_characters(const TokenizerContents& contents, std::string_view text,
                       std::vector<std::uint32_t>& ids) {
  while (!text.empty()) {
    const Utf8Character character = first_character(text);
    const auto id = contents.ids.find(character.value);
    if (id == contents.ids.end()) {
      fail(ExitCode::kData,
           "the character {} is not among the {} of the vocabulary: it was not in the text that "
           "the data set was made from; leave it out",
           character_text(character.value), contents.characters.size());
    }
    ids.push_back(id->second);
    text.remove_prefix(character.bytes);
  }
}

/// Adds the tokens of files beside a tokenizer's to byte pairs, and finds the separator.
void add_tokens_beside(const std::filesystem::path& path, BytePairTables& tables) {
  const std::vector<AddedToken> more = added_tokens_beside(path);
  std::unordered_map<std::string_view, std::int64_t> ids;
  for (std::size_t id = 0; id < tables.tokens.size() && !more.empty(); ++id) {
    ids.emplace(tables.tokens[id], id);
  }
  add_tokens(more,
             {.name = path.string(),
              .ids = std::ssize(tables.tokens),
              .text_of = [&](std::uint32_t id) { return tables.tokens[id]; },
              .id_of =
                  [&](const std::string& text) {
                    const auto id = ids.find(text);
                    return id == ids.end() ? -1 : id->second;
                  }},
             tables.added);
  ids.clear();  // views of tokens that move
  tables.tokens.resize(static_cast<std::size_t>(ids_with(tables.added, std::ssize(tables.tokens))));
  std::vector<std::string_view> separators{kGpt2Separator, "<|end_of_text|>"};
  if (tables.characters) {  // of models that were converted from SentencePiece's
    separators.insert(separators.end(), {"</s>", "<eos>"});
  }
  for (const std::string_view separator : separators) {
    // Gemma's </s> is one of HTML.
    const auto found = std::ranges::find_if(tables.added, [&](const AddedToken& token) {
      return token.text == separator && (token.special || !tables.characters);
    });
    if (tables.separator < 0 && found != tables.added.end()) {
      tables.separator = found->id;
    }
  }
  for (const AddedToken& token : tables.added) {
    tables.tokens[token.id] = token.text;
  }
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerContents> contents)
    : contents_(std::move(contents)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&& other) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&& other) noexcept = default;

Tokenizer Tokenizer::bytes() {
  return Tokenizer(std::make_unique<TokenizerContents>());
}

Tokenizer Tokenizer::chars(std::vector<char32_t> characters) {
  auto contents = std::make_unique<TokenizerContents>();
  contents->kind = TokenizerKind::kChars;
  contents->characters = std::move(characters);
  for (const char32_t character : contents->characters) {
    const bool is_new =
        contents->ids.emplace(character, static_cast<std::uint32_t>(contents->ids.size())).second;
    require(is_new, "the character {} is twice in a vocabulary", character_text(character));
  }
  return Tokenizer(std::move(contents));
}

namespace {

/// Whether no token is added but the separator, which is found in text only where asked.
bool has_plain_separator(const BytePairTables& tables) {
  return std::ranges::all_of(tables.added, [&](const AddedToken& token) {
    return token.id == tables.separator && token.is_plain();
  });
}

}  // namespace

Tokenizer Tokenizer::gpt2(const std::filesystem::path& encoder,
                          const std::filesystem::path& merges) {
  BytePairTables tables = read_gpt2_files(encoder, merges);
  const std::size_t tokens = tables.tokens.size();
  add_tokens_beside(encoder, tables);
  if (const auto place =
          std::ranges::lower_bound(tables.added, tables.separator, {}, &AddedToken::id);
      tables.separator >= 0 && (place == tables.added.end() || place->id != tables.separator)) {
    tables.added.insert(place, {static_cast<std::uint32_t>(tables.separator), kGpt2Separator});
  }
  auto contents = std::make_unique<TokenizerContents>();
  contents->kind = tables.tokens.size() == tokens && has_plain_separator(tables)
                       ? TokenizerKind::kGpt2
                       : TokenizerKind::kBytePairs;
  contents->pairs.emplace(std::move(tables));
  return Tokenizer(std::move(contents));
}

namespace {

constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kBeginRole = "bos_token";
constexpr const char* kEndRole = "eos_token";

/// Whether a tokenizer_config.json names a class that puts bos_token before a text, whatever the
/// template in tokenizer.json, unless add_bos_token and add_eos_token say otherwise.
/// Source: huggingface/transformers, LlamaTokenizerFast.update_post_processor().
bool frames_by_class(const nlohmann::json& config) {
  constexpr std::array<std::string_view, 6> kClasses{"LlamaTokenizer",     "LlamaTokenizerFast",
                                                     "CodeLlamaTokenizer", "CodeLlamaTokenizerFast",
                                                     "GemmaTokenizer",     "GemmaTokenizerFast"};
  const nlohmann::json name = config.value("tokenizer_class", nlohmann::json());
  return name.is_string() &&
         std::ranges::find(kClasses, name.get_ref<const std::string&>()) != kClasses.end();
}

/// `frame` as a tokenizer_config.json changes it. `id_of`: the id of bos_token or eos_token, or -1.
DocumentFrame frame_beside(const nlohmann::json& config, DocumentFrame frame,
                           const std::function<std::int64_t(const char* role)>& id_of) {
  const auto read = [&](const char* key, const char* role, bool usual,
                        std::vector<std::uint32_t>& ids) {
    const nlohmann::json given = config.value(key, nlohmann::json());
    const std::int64_t id = id_of(role);
    if (!(given.is_boolean() ? given.get<bool>() : usual)) {
      ids.clear();
    } else if (id >= 0) {
      ids = {static_cast<std::uint32_t>(id)};
    }
  };
  read("add_bos_token", kBeginRole, frames_by_class(config), frame.before);
  read("add_eos_token", kEndRole, false, frame.after);
  return frame;
}

/// Whether the tables are as GPT-2's files give them: bytes, then a token for each merge in order,
/// then the separator. The orders of merges then make no difference.
bool is_gpt2(const BytePairTables& tables) {
  constexpr std::size_t kBytes = 256;
  const std::size_t separator = kBytes + tables.merges.size();
  bool is = tables.splits == BytePairTables().splits && tables.normalizer == Normalizer::kNone &&
            !tables.characters && tables.frame.empty() && tables.whole_words == WholeWords::kNo &&
            tables.tokens.size() == separator + 1 &&
            tables.separator == static_cast<std::int64_t>(separator) && has_plain_separator(tables);
  for (std::size_t i = 0; is && i < tables.merges.size(); ++i) {
    const auto [left, right] = tables.merges[i];
    is = tables.tokens[kBytes + i] == tables.tokens[left] + tables.tokens[right];
  }
  return is;
}

}  // namespace

Tokenizer Tokenizer::from_file(const std::filesystem::path& path, const std::string& pattern) {
  std::string file = InputStream(path).read_whole(kMostTokenizerBytes);
  auto contents = std::make_unique<TokenizerContents>();
  contents->kind = TokenizerKind::kBytePairs;
  const bool is_json = file.starts_with('{');
  // A model begins with the tag of its first piece.
  const bool is_model = file.starts_with('\n');
  if (!pattern.empty() && (is_json || is_model)) {
    fail(ExitCode::kUsage, "{} says itself how text is split; leave --split-pattern out",
         path.string());
  }
  if (is_json) {
    BytePairTables tables = parse_tokenizer_json(file, path);
    add_tokens_beside(path, tables);
    const nlohmann::json config = object_beside(path, kTokenizerConfig);
    if (config.is_object() && frames_by_class(config)) {
      tables.frame = frame_beside(config, tables.frame, [&](const char* role) -> std::int64_t {
        const auto found = std::ranges::find(
            tables.added, token_text(config.value(role, nlohmann::json())), &AddedToken::text);
        return found == tables.added.end() ? -1 : std::int64_t{found->id};
      });
    }
    if (tables.characters) {
      contents->kind =
          tables.scores.empty() ? TokenizerKind::kCharacterPairs : TokenizerKind::kUnigram;
    }
    if (is_gpt2(tables)) {
      // The same tokenizer as from GPT-2's own files.
      contents->kind = TokenizerKind::kGpt2;
      tables.order = MergeOrder::kAllOfPair;
    }
    contents->pairs.emplace(std::move(tables));
  } else if (is_model) {
    contents->kind = TokenizerKind::kSentencePiece;
    contents->pieces = std::make_unique<const SentencePieces>(std::move(file), path.string());
    const SentencePieces& pieces = *contents->pieces;
    const nlohmann::json config = object_beside(path, kTokenizerConfig);
    if (config.is_object()) {
      contents->pieces_frame = frame_beside(config, {}, [&](const char* role) {
        return std::string_view(role) == kBeginRole ? pieces.begin() : pieces.end();
      });
    }
    add_tokens(added_tokens_beside(path),
               {.name = path.string(),
                .ids = pieces.vocabulary(),
                .text_of = [&](std::uint32_t id) { return pieces.piece(id); },
                .id_of = [&](const std::string& text) { return pieces.id_of(text); }},
               contents->pieces_added);
  } else {
    const auto* const published =
        std::ranges::find(kPublishedExpressions, pattern, &PublishedExpression::name);
    const bool is_name = published != kPublishedExpressions.end();
    if (!is_name && !pattern.empty() && pattern.find_first_of("\\([") == std::string::npos) {
      fail(ExitCode::kUsage,
           "--split-pattern is \"{}\"; gpt2, llama3, o200k or a regular expression was expected",
           printable(pattern));
    }
    BytePairTables tables =
        parse_rank_file(file, is_name ? std::string(published->text) : pattern, path);
    if (pattern.empty()) {
      fail(ExitCode::kUsage,
           "{} is a file of ranks, which does not say how text is split; give "
           "--split-pattern=gpt2, llama3 (cl100k's too), o200k or an expression, as the "
           "ranks were made with",
           path.string());
    }
    contents->pairs.emplace(std::move(tables));
  }
  return Tokenizer(std::move(contents));
}

TokenizerKind Tokenizer::kind() const {
  return contents_->kind;
}

std::int64_t Tokenizer::vocabulary() const {
  if (contents_->kind == TokenizerKind::kChars) {
    return std::ssize(contents_->characters);
  }
  return contents_->pairs    ? std::ssize(contents_->pairs->tables().tokens)
         : contents_->pieces ? contents_->pieces_ids()
                             : kByteValues;
}

std::int64_t Tokenizer::added_tokens() const {
  return std::ssize(contents_->added());
}

std::int64_t Tokenizer::separator() const {
  return contents_->pairs    ? contents_->pairs->tables().separator
         : contents_->pieces ? contents_->pieces->separator()
                             : -1;
}

const DocumentFrame& Tokenizer::frame() const {
  return contents_->pairs ? contents_->pairs->tables().frame : contents_->pieces_frame;
}

std::vector<std::int64_t> begin_document(const Tokenizer& tokenizer,
                                         std::vector<std::int64_t> ids) {
  const std::vector<std::uint32_t>& before = tokenizer.frame().before;
  if (std::ranges::mismatch(before, ids).in1 != before.end()) {
    ids.insert(ids.begin(), before.begin(), before.end());
  }
  if (ids.empty() && tokenizer.separator() >= 0) {
    ids.push_back(tokenizer.separator());
  }
  return ids;
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, Markers markers) const {
  std::vector<std::uint32_t> ids;
  if (contents_->kind == TokenizerKind::kChars) {
    check_utf8(text);
    encode_characters(*contents_, text, ids);
  } else {
    const std::unique_ptr<TextEncoder> encoder = text_encoder(*contents_, markers);
    if (encoder->needs_utf8()) {
      check_utf8(text);
    }
    encoder->encode(text, End::kReached, ids);
  }
  return {ids.begin(), ids.end()};
}

namespace {

/// The text of a token of characters. One that is found in normalized text has that, as in Hugging
/// Face's library.
std::string text_of_pieces(const BytePairTables& tables, std::size_t id, bool is_first) {
  const CharacterRules& rules = *tables.characters;
  const AddedToken* added = find_added(tables.added, id);
  const bool is_normalized = added != nullptr && added->normalized;
  return rules.text_of(is_normalized
                           ? TextChanger(rules.changes).changed(tables.tokens[id], End::kReached)
                           : tables.tokens[id],
                       is_first);
}

}  // namespace

std::string Tokenizer::decode(std::span<const std::int64_t> ids, Continues continues) const {
  std::string text;
  const bool begins = continues == Continues::kNo;
  const bool of_characters = contents_->pairs && contents_->pairs->tables().characters;
  for (const std::int64_t& id : ids) {
    if (id < 0 || id >= vocabulary()) {
      fail(ExitCode::kData, "the token {} has no text: the vocabulary has the tokens 0 to {}", id,
           vocabulary() - 1);
    }
    const auto index = static_cast<std::size_t>(id);
    if (contents_->kind == TokenizerKind::kChars) {
      append_utf8(contents_->characters[index], text);
    } else if (of_characters) {
      text += text_of_pieces(contents_->pairs->tables(), index, begins && &id == ids.data());
    } else if (contents_->pairs) {
      text += contents_->pairs->tables().tokens[index];
    } else if (contents_->pieces && id < contents_->pieces->vocabulary()) {
      text += contents_->pieces->text_of(static_cast<std::uint32_t>(id));
    } else if (contents_->pieces) {
      const AddedToken* token = find_added(contents_->pieces_added, index);
      text += token != nullptr ? token->text : "";
    } else {
      text += static_cast<char>(static_cast<unsigned char>(id));
    }
  }
  if (contents_->pieces && contents_->pieces->puts_space_before() && begins &&
      text.starts_with(' ')) {
    text.erase(0, 1);
  }
  if (of_characters && begins) {
    const std::size_t spaces = std::min(text.find_first_not_of(' '), text.size());
    const std::int64_t dropped = contents_->pairs->tables().characters->dropped;
    text.erase(0, std::min(spaces, static_cast<std::size_t>(dropped)));
  }
  return text;
}

std::vector<std::filesystem::path> write_tokenizer_files(const Tokenizer& tokenizer,
                                                         const std::filesystem::path& directory) {
  const TokenizerContents& contents = tokenizer.contents();
  std::vector<std::filesystem::path> files;
  const auto write = [&](const char* name, const std::string& text) {
    files.push_back(directory / name);
    write_whole_file(files.back(), text, ExitCode::kData);
  };
  if (contents.pieces) {
    write("tokenizer.model", contents.pieces->model());
    // Programs put bos_token before a text where nothing says otherwise.
    nlohmann::json config{{"add_bos_token", !tokenizer.frame().before.empty()},
                          {"add_eos_token", !tokenizer.frame().after.empty()}};
    nlohmann::json beyond = nlohmann::json::object();
    for (const nlohmann::json& token : added_tokens_json(contents.pieces_added)) {
      if (token.at("id") >= contents.pieces->vocabulary()) {
        beyond[token.at("content").get<std::string>()] = token.at("id");
      }
      nlohmann::json& flags = config["added_tokens_decoder"][token.at("id").dump()] = token;
      flags.erase("id");
    }
    write(kTokenizerConfig, config.dump(2) + "\n");
    if (!beyond.empty()) {  // for a tokenizer_config.json that does not list them
      write("added_tokens.json", beyond.dump(2) + "\n");
    }
  } else if (contents.kind != TokenizerKind::kChars) {
    BytePairTables bytes;
    for (int byte = 0; byte < kByteValues; ++byte) {
      bytes.tokens.emplace_back(1, static_cast<char>(byte));
    }
    write("tokenizer.json", tokenizer_json(contents.pairs ? contents.pairs->tables() : bytes));
    // Without it programs take the class of the model's family, which may add its own tokens.
    nlohmann::json config{{"tokenizer_class", "PreTrainedTokenizerFast"}};
    const std::vector<std::uint32_t>& before = tokenizer.frame().before;
    for (const auto& [role, id] :
         {std::pair(kBeginRole, before.empty() ? -1 : std::int64_t{before.front()}),
          std::pair(kEndRole, tokenizer.separator())}) {
      if (id >= 0) {
        config[role] = contents.pairs->tables().tokens[static_cast<std::size_t>(id)];
      }
    }
    write(kTokenizerConfig, config.dump(2) + "\n");
  }
  return files;
}

}  // namespace strata::io
