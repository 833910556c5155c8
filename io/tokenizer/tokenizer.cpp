#include "strata/io/tokenizer.hpp"

#include "strata/core/error.hpp"
#include "strata/core/utf8.hpp"

#include "tokenizer/text_encoder.hpp"
#include "tokenizer/tokenizer_contents.hpp"

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

// Calls `encode` with each text between separators and `mark` for each separator.
template <typename Encode, typename Mark>
void for_each_document(std::string_view text, std::string_view separator, Encode&& encode,
                       Mark&& mark) {
  for (std::size_t at = text.find(separator); at != std::string_view::npos;
       at = text.find(separator)) {
    encode(text.substr(0, at));
    mark();
    text.remove_prefix(at + separator.size());
  }
  encode(text);
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

TokenizerKind Tokenizer::kind() const {
  return contents_->kind;
}

std::int64_t Tokenizer::vocabulary() const {
  switch (contents_->kind) {
    case TokenizerKind::kChars:
      return std::ssize(contents_->characters);
    case TokenizerKind::kGpt2:
      return std::ssize(contents_->pairs->tables().tokens);
    default:
      return kByteValues;
  }
}

std::int64_t Tokenizer::separator() const {
  return contents_->pairs ? contents_->pairs->tables().separator : -1;
}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, Markers markers) const {
  std::vector<std::uint32_t> ids;
  switch (contents_->kind) {
    case TokenizerKind::kChars:
      check_utf8(text);
      encode_characters(*contents_, text, ids);
      break;
    case TokenizerKind::kGpt2: {
      check_utf8(text);
      Gpt2Encoder encoder(*contents_->pairs);
      const auto encode = [&](std::string_view piece) {
        encoder.encode(piece, End::kReached, ids);
      };
      if (markers == Markers::kRecognised && separator() >= 0) {
        const auto id = static_cast<std::uint32_t>(separator());
        for_each_document(text, contents_->pairs->tables().tokens[id], encode,
                          [&] { ids.push_back(id); });
      } else {
        encode(text);
      }
      break;
    }
    default:
      BytesEncoder().encode(text, End::kReached, ids);
      break;
  }
  return {ids.begin(), ids.end()};
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids) const {
  std::string text;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocabulary()) {
      fail(ExitCode::kData, "the token {} has no text: the vocabulary has the tokens 0 to {}", id,
           vocabulary() - 1);
    }
    const auto index = static_cast<std::size_t>(id);
    switch (contents_->kind) {
      case TokenizerKind::kChars:
        append_utf8(contents_->characters[index], text);
        break;
      case TokenizerKind::kGpt2:
        text += contents_->pairs->tables().tokens[index];
        break;
      default:
        text += static_cast<char>(static_cast<unsigned char>(id));
        break;
    }
  }
  return text;
}

}  // namespace strata::io
