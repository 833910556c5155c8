#include "strata/io/tokenizer.hpp"

#include <nlohmann/json.hpp>

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"

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

std::vector<Marker> markers_of(const TokenizerContents& contents) {
  std::vector<Marker> markers;
  if (contents.pairs) {
    for (const std::uint32_t id : contents.pairs->tables().special) {
      markers.push_back({contents.pairs->tables().tokens[id], id});
    }
  } else if (contents.pieces) {
    for (const std::uint32_t id : contents.pieces->control_symbols()) {
      markers.push_back({contents.pieces->piece(id), id});
    }
  }
  std::erase_if(markers, [](const Marker& marker) { return marker.text.empty(); });
  return markers;
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

Tokenizer Tokenizer::gpt2(const std::filesystem::path& encoder,
                          const std::filesystem::path& merges) {
  auto contents = std::make_unique<TokenizerContents>();
  contents->kind = TokenizerKind::kGpt2;
  contents->pairs.emplace(read_gpt2_files(encoder, merges));
  return Tokenizer(std::move(contents));
}

namespace {

/// The frame that a tokenizer_config.json gives SentencePiece's model beside it.
DocumentFrame frame_beside(const std::filesystem::path& model, const SentencePieces& pieces) {
  const std::filesystem::path path = model.parent_path() / "tokenizer_config.json";
  DocumentFrame frame;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return frame;
  }
  const auto config = parse_json(InputStream(path).read_whole(kMostTokenizerBytes));
  if (!config || !config->is_object()) {
    fail(ExitCode::kData, "{} is no JSON object; copy it again, or remove it", path.string());
  }
  const auto add = [&](const char* key, std::int64_t id, std::vector<std::uint32_t>& ids) {
    if (id >= 0 && config->contains(key) && config->at(key) == true) {
      ids.push_back(static_cast<std::uint32_t>(id));
    }
  };
  add("add_bos_token", pieces.begin(), frame.before);
  add("add_eos_token", pieces.end(), frame.after);
  return frame;
}

/// Whether the tables are as GPT-2's files give them: bytes, then a token for each merge in order,
/// then the separator. The orders of merges then make no difference.
bool is_gpt2(const BytePairTables& tables) {
  constexpr std::size_t kBytes = 256;
  const std::size_t separator = kBytes + tables.merges.size();
  bool is = tables.pattern == SplitPattern::kGpt2 && tables.frame.empty() &&
            tables.whole_words == WholeWords::kNo && tables.tokens.size() == separator + 1 &&
            tables.separator == static_cast<std::int64_t>(separator) && tables.special.size() == 1;
  for (std::size_t i = 0; is && i < tables.merges.size(); ++i) {
    const auto [left, right] = tables.merges[i];
    is = tables.tokens[kBytes + i] == tables.tokens[left] + tables.tokens[right];
  }
  return is;
}

}  // namespace

Tokenizer Tokenizer::from_file(const std::filesystem::path& path,
                               std::optional<SplitPattern> pattern) {
  std::string file = InputStream(path).read_whole(kMostTokenizerBytes);
  auto contents = std::make_unique<TokenizerContents>();
  contents->kind = TokenizerKind::kBytePairs;
  const bool is_json = file.starts_with('{');
  // A model begins with the tag of its first piece.
  const bool is_model = file.starts_with('\n');
  if (pattern && (is_json || is_model)) {
    fail(ExitCode::kUsage, "{} says itself how text is split; leave --split-pattern out",
         path.string());
  }
  if (is_json) {
    BytePairTables tables = parse_tokenizer_json(file, path);
    if (is_gpt2(tables)) {
      // The same tokenizer as from GPT-2's own files.
      contents->kind = TokenizerKind::kGpt2;
      tables.order = MergeOrder::kAllOfPair;
    }
    contents->pairs.emplace(std::move(tables));
  } else if (is_model) {
    contents->kind = TokenizerKind::kSentencePiece;
    contents->pieces = std::make_unique<const SentencePieces>(std::move(file), path.string());
    contents->pieces_frame = frame_beside(path, *contents->pieces);
  } else {
    contents->pairs.emplace(parse_rank_file(file, pattern.value_or(SplitPattern::kGpt2), path));
    if (!pattern) {
      fail(ExitCode::kUsage,
           "{} is a file of ranks, which does not say how text is split; give "
           "--split-pattern=gpt2 or llama3, whichever the ranks were made with",
           path.string());
    }
  }
  return Tokenizer(std::move(contents));
}

std::unique_ptr<TextEncoder> text_encoder(const TokenizerContents& contents, Markers markers) {
  std::unique_ptr<TextEncoder> encoder;
  if (contents.pairs) {
    encoder = std::make_unique<BytePairsEncoder>(*contents.pairs);
  } else if (contents.pieces) {
    encoder = std::make_unique<SentencePieceEncoder>(*contents.pieces);
  } else {
    return std::make_unique<BytesEncoder>();
  }
  std::vector<Marker> texts = markers_of(contents);
  return markers == Markers::kAsText || texts.empty()
             ? std::move(encoder)
             : std::make_unique<MarkersEncoder>(std::move(encoder), std::move(texts));
}

TokenizerKind Tokenizer::kind() const {
  return contents_->kind;
}

std::int64_t Tokenizer::vocabulary() const {
  if (contents_->kind == TokenizerKind::kChars) {
    return std::ssize(contents_->characters);
  }
  return contents_->pairs    ? std::ssize(contents_->pairs->tables().tokens)
         : contents_->pieces ? contents_->pieces->vocabulary()
                             : kByteValues;
}

std::int64_t Tokenizer::separator() const {
  return contents_->pairs    ? contents_->pairs->tables().separator
         : contents_->pieces ? contents_->pieces->separator()
                             : -1;
}

const DocumentFrame& Tokenizer::frame() const {
  return contents_->pairs ? contents_->pairs->tables().frame : contents_->pieces_frame;
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

std::string Tokenizer::decode(std::span<const std::int64_t> ids, Continues continues) const {
  std::string text;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocabulary()) {
      fail(ExitCode::kData, "the token {} has no text: the vocabulary has the tokens 0 to {}", id,
           vocabulary() - 1);
    }
    const auto index = static_cast<std::size_t>(id);
    if (contents_->kind == TokenizerKind::kChars) {
      append_utf8(contents_->characters[index], text);
    } else if (contents_->pairs) {
      text += contents_->pairs->tables().tokens[index];
    } else if (contents_->pieces) {
      text += contents_->pieces->text_of(static_cast<std::uint32_t>(id));
    } else {
      text += static_cast<char>(static_cast<unsigned char>(id));
    }
  }
  if (contents_->pieces && contents_->pieces->puts_space_before() && continues == Continues::kNo &&
      text.starts_with(' ')) {
    text.erase(0, 1);
  }
  return text;
}

std::optional<std::filesystem::path> write_tokenizer_files(const Tokenizer& tokenizer,
                                                           const std::filesystem::path& directory) {
  const TokenizerContents& contents = tokenizer.contents();
  if (contents.kind == TokenizerKind::kChars) {
    return std::nullopt;
  }
  BytePairTables bytes;
  for (int byte = 0; byte < kByteValues; ++byte) {
    bytes.tokens.emplace_back(1, static_cast<char>(byte));
  }
  const std::filesystem::path path =
      directory / (contents.pieces ? "tokenizer.model" : "tokenizer.json");
  const std::string text = contents.pieces
                               ? contents.pieces->model()
                               : tokenizer_json(contents.pairs ? contents.pairs->tables() : bytes);
  write_whole_file(path, text, ExitCode::kData);
  return path;
}

}  // namespace strata::io
