#include <algorithm>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"

#include "files/input_stream.hpp"
#include "import/token_source.hpp"
#include "tokenizer/text_encoder.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

// Encodes one file piece by piece; memory is bounded by a piece or the longest word.
class Document {
 public:
  explicit Document(const std::filesystem::path& path) : file_(path) {}

  /// Appends the ids of the next piece; false at the end of the file.
  [[nodiscard]] bool next(TextEncoder& encoder, std::vector<std::uint32_t>& ids) {
    if (end_ == End::kReached) {
      return false;
    }
    read_piece();
    const std::size_t whole = encoder.needs_utf8() ? whole_characters() : text_.size();
    std::size_t used = 0;
    try {
      used = encoder.encode(std::string_view(text_).substr(0, whole), end_, ids);
    } catch (const Error& error) {
      fail(error.code(), "{}, from byte {} on: {}", file_.path().string(), position_, error.what());
    }
    text_.erase(0, used);
    position_ += static_cast<std::int64_t>(used);
    return true;
  }

 private:
  void read_piece() {
    constexpr std::size_t kPiece = std::size_t{1} << 20;
    if (text_.size() > kLongestWord) {
      fail(ExitCode::kData,
           "{} holds a word of more than {} from byte {} on; it is no text, or import it with "
           "--tokenizer=bytes or chars",
           file_.path().string(), bytes_text(kLongestWord), position_);
    }
    // A growing word is scanned again from its start: doubling the piece keeps that linear.
    const std::size_t piece = std::max(kPiece, text_.size());
    if (file_.append_to(text_, piece) < piece) {
      end_ = End::kReached;
    }
    if (text_.empty() && position_ == 0) {
      fail(ExitCode::kData, "{} is empty; leave it out", file_.path().string());
    }
  }

  [[nodiscard]] std::size_t whole_characters() const {
    const Utf8Prefix prefix = utf8_prefix(text_);
    const bool cut_short = prefix.rest == Utf8Prefix::Rest::kCutShort;
    if (prefix.rest == Utf8Prefix::Rest::kInvalid || (cut_short && end_ == End::kReached)) {
      fail(
          ExitCode::kData,
          "{} is not valid UTF-8: byte {} (counted from 0) {}; convert the file, or import it with "
          "--tokenizer=bytes",
          file_.path().string(), position_ + static_cast<std::int64_t>(prefix.bytes),
          cut_short ? "begins a character that the file's end cuts short" : "begins no character");
    }
    return prefix.bytes;
  }

  InputStream file_;
  std::string text_;           // read but not yet encoded
  std::int64_t position_ = 0;  // file offset of text_
  End end_ = End::kNotYet;
};

class TextSource : public TokenSource {
 public:
  TextSource(const ImportOptions& options, std::unique_ptr<TextEncoder> encoder,
             std::optional<Tokenizer> tokenizer)
      : TokenSource(options.inputs, std::move(tokenizer)), encoder_(std::move(encoder)) {
    // Report missing files before encoding, which may take hours.
    for (const std::filesystem::path& file : files_) {
      const InputStream opened(file);
    }
    if (!tokenizer_ || options.separator == Separator::kNo) {
      return;
    }
    frame_ = tokenizer_->frame();
    const auto has_separator = [&](const std::vector<std::uint32_t>& ids) {
      return std::ranges::find(ids, tokenizer_->separator()) != ids.end();
    };
    // A frame with the separator separates by itself.
    if (!has_separator(frame_.before) && !has_separator(frame_.after)) {
      separator_ = tokenizer_->separator();
    }
  }

  [[nodiscard]] bool next(std::vector<std::uint32_t>& ids) override {
    ids.clear();
    while (ids.empty()) {
      if (!document_) {
        if (opened_ == files_.size()) {
          return false;
        }
        if (opened_ > 0 && separator_ >= 0) {
          ids.push_back(static_cast<std::uint32_t>(separator_));
        }
        ids.insert(ids.end(), frame_.before.begin(), frame_.before.end());
        document_.emplace(files_[opened_++]);
      }
      if (!document_->next(*encoder_, ids)) {
        ids.insert(ids.end(), frame_.after.begin(), frame_.after.end());
        document_.reset();
      }
    }
    return true;
  }

 protected:
  [[nodiscard]] const TextEncoder& encoder() const { return *encoder_; }

 private:
  std::unique_ptr<TextEncoder> encoder_;
  std::int64_t separator_ = -1;  // the token between documents; negative: none
  DocumentFrame frame_;          // the tokens around each document
  std::size_t opened_ = 0;
  std::optional<Document> document_;
};

// The set of characters is known only at the end: until then ids follow first occurrence.
class CharsSource final : public TextSource {
 public:
  explicit CharsSource(const ImportOptions& options)
      : TextSource(options, std::make_unique<GrowingCharsEncoder>(), std::nullopt) {}

  [[nodiscard]] std::uint32_t largest_id() const override { return 0x10FFFF; }
  [[nodiscard]] bool next(std::vector<std::uint32_t>& ids) override {
    if (TextSource::next(ids)) {
      return true;
    }
    tokenizer_.emplace(Tokenizer::chars(characters().sorted()));
    return false;
  }
  [[nodiscard]] std::vector<std::uint32_t> renumbering() const override {
    return characters().renumbering();
  }

 private:
  [[nodiscard]] const GrowingCharsEncoder& characters() const {
    return static_cast<const GrowingCharsEncoder&>(encoder());
  }
};

std::string tokenizer_name(const ImportOptions& options) {
  return options.tokenizer_file.empty() ? std::string(name_of(options.tokenizer))
                                        : options.tokenizer_file.string();
}

}  // namespace

std::unique_ptr<TokenSource> open_text_source(const ImportOptions& options) {
  if (options.tokenizer == TokenizerKind::kChars && options.separator != Separator::kYes) {
    return std::make_unique<CharsSource>(options);
  }
  std::optional<Tokenizer> tokenizer = given_tokenizer(options);
  if (!tokenizer && options.tokenizer == TokenizerKind::kNone) {
    fail(ExitCode::kUsage,
         "--format=text needs --tokenizer=bytes, chars or gpt2, or the file of a tokenizer");
  }
  if (options.separator == Separator::kYes && (!tokenizer || tokenizer->separator() < 0)) {
    fail(ExitCode::kUsage,
         "--separator=on needs a token to put between documents; --tokenizer={} has none",
         tokenizer_name(options));
  }
  const bool separate = options.separator != Separator::kNo;
  if (separate && options.tokenizer == TokenizerKind::kGpt2 && tokenizer->separator() < 0 &&
      options.inputs.size() > 1) {
    fail(ExitCode::kData, "{} has no <|endoftext|> to put between documents; give --separator=off",
         options.encoder.string());
  }
  auto encoder = text_encoder(tokenizer->contents(), options.markers);
  return std::make_unique<TextSource>(options, std::move(encoder), std::move(tokenizer));
}

std::optional<Tokenizer> given_tokenizer(const ImportOptions& options) {
  if (!options.tokenizer_file.empty()) {
    return Tokenizer::from_file(options.tokenizer_file, options.split_pattern);
  }
  switch (options.tokenizer) {
    case TokenizerKind::kBytes:
      return Tokenizer::bytes();
    case TokenizerKind::kGpt2:
      return Tokenizer::gpt2(options.encoder, options.merges);
    default:
      return std::nullopt;
  }
}

}  // namespace strata::io
