#include <algorithm>
#include <exception>

#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/json.hpp"

#include "files/input_stream.hpp"
#include "import/parallel_lines.hpp"
#include "import/token_source.hpp"
#include "tokenizer/text_encoder.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

// Encodes one file piece by piece, or one text; memory is bounded by a piece or the longest word.
class Document {
 public:
  explicit Document(const std::filesystem::path& path) : name_(path.string()), file_(path) {}
  Document(std::string name, std::string text)
      : name_(std::move(name)), text_(std::move(text)), end_(End::kReached) {}

  /// Appends the ids of the next piece; false at the end of the file.
  [[nodiscard]] bool next(TextEncoder& encoder, std::vector<std::uint32_t>& ids) {
    if (is_encoded_) {
      return false;
    }
    if (end_ == End::kNotYet) {
      read_piece();
    }
    is_encoded_ = end_ == End::kReached;
    const std::size_t whole = encoder.needs_utf8() ? whole_characters() : text_.size();
    std::size_t used = 0;
    try {
      used = encoder.encode(std::string_view(text_).substr(0, whole), end_, ids);
    } catch (const Error& error) {
      fail(error.code(), "{}, from byte {} on: {}", name_, position_, error.what());
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
           name_, bytes_text(kLongestWord), position_);
    }
    // A growing word is scanned again from its start: doubling the piece keeps that linear.
    const std::size_t piece = std::max(kPiece, text_.size());
    if (file_->append_to(text_, piece) < piece) {
      end_ = End::kReached;
    }
    if (text_.empty() && position_ == 0) {
      fail(ExitCode::kData, "{} is empty; leave it out", name_);
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
          name_, position_ + static_cast<std::int64_t>(prefix.bytes),
          cut_short ? "begins a character that the file's end cuts short" : "begins no character");
    }
    return prefix.bytes;
  }

  std::string name_;
  std::optional<InputStream> file_;  // not of a text
  std::string text_;                 // read but not yet encoded
  std::int64_t position_ = 0;        // offset of text_
  End end_ = End::kNotYet;
  bool is_encoded_ = false;
};

class TextSource : public DocumentSource {
 public:
  /// With several encoders as many threads encode lines; with one, lines are encoded in order.
  TextSource(const ImportOptions& options, std::vector<std::unique_ptr<TextEncoder>> encoders,
             std::optional<Tokenizer> tokenizer)
      : DocumentSource(options.inputs, std::move(tokenizer)),
        rules_(options.documents),
        encoders_(std::move(encoders)),
        field_(options.text_field) {
    if (!tokenizer_ || options.separator == Separator::kNo) {
      return;
    }
    frame_ = tokenizer_->frame();
    const auto has_separator = [&](const std::vector<std::uint32_t>& ids) {
      return std::ranges::find(ids, tokenizer_->separator()) != ids.end();
    };
    // A frame with the separator separates by itself.
    if (tokenizer_->separator() >= 0 && !has_separator(frame_.before) &&
        !has_separator(frame_.after)) {
      frame_.after.push_back(static_cast<std::uint32_t>(tokenizer_->separator()));
      // Of documents that are held out any may become the last of a split.
      separator_ = rules_.held_out > 0.0 ? -1 : tokenizer_->separator();
    }
  }

  [[nodiscard]] CutFiles cut_files() const override {
    return field_.empty() ? CutFiles::kNo : CutFiles::kBetweenLines;
  }

  void read(const InputPiece& piece, PieceWriter& to,
            const std::function<void(std::int64_t)>& read) override {
    field_.empty() ? read_files(piece, to, read) : read_lines(piece, to, read);
  }

 protected:
  [[nodiscard]] TextEncoder& encoder() const { return *encoders_.front(); }

 private:
  /// A line: its text, empty for null, and its ids where threads encode.
  struct Line {
    std::string text;
    std::vector<std::uint32_t> ids;
    std::exception_ptr error;  ///< of encoding, which counts where the line is imported
  };

  [[nodiscard]] Line read_line(std::string_view text, const LinePlace& place,
                               std::size_t thread) const {
    std::optional<std::string> member = text_member(text, field_);
    Line line{.text = member ? std::move(*member) : text_of(object_of_line(text, place), place),
              .ids = {},
              .error = {}};
    if (encoders_.size() > 1) {
      try {
        encode(line, place, *encoders_[thread]);
      } catch (const Error&) {
        line.error = std::current_exception();
      }
    }
    return line;
  }

  static void encode(Line& line, const LinePlace& place, TextEncoder& encoder) {
    try {
      static_cast<void>(Document("", line.text).next(encoder, line.ids));
    } catch (const Error& error) {
      fail(error.code(), "{}{}", place.text(), error.what());
    }
  }

  void read_lines(const InputPiece& piece, PieceWriter& to,
                  const std::function<void(std::int64_t)>& read) const {
    ParallelLines<Line> lines(
        files_, piece.parts, std::ssize(encoders_),
        [this](std::string_view line, const LinePlace& place, std::size_t thread) {
          return read_line(line, place, thread);
        });
    DocumentFilter filter(rules_);
    while (lines.next()) {
      Line& line = lines.result();
      if (line.text.empty() || !filter.takes(line.text)) {
        continue;
      }
      if (line.error) {
        std::rethrow_exception(line.error);
      }
      if (encoders_.size() == 1) {
        encode(line, lines.place(), encoder());
      }
      to.append(frame_.before);
      to.append(line.ids);
      end_document(to, read);
    }
    to.index().hashes = filter.hashes();
    to.index().counts = filter.counts();
  }

  void read_files(const InputPiece& piece, PieceWriter& to,
                  const std::function<void(std::int64_t)>& read) const {
    std::vector<std::uint32_t> ids;
    for (const InputPart& part : piece.parts) {
      Document document(files_[part.file]);
      to.append(frame_.before);
      while (document.next(encoder(), ids)) {
        to.append(ids);
        read(to.tokens());
        ids.clear();
      }
      end_document(to, read);
    }
  }

  void end_document(PieceWriter& to, const std::function<void(std::int64_t)>& read) const {
    to.append(frame_.after);
    to.index().documents.ends.push_back(to.tokens());
    read(to.tokens());
  }

  [[nodiscard]] std::string text_of(const nlohmann::json& object, const LinePlace& place) const {
    const auto member = object.find(field_);
    if (member == object.end() || (!member->is_string() && !member->is_null())) {
      std::vector<std::string> names;
      for (const auto& [name, value] : object.items()) {
        names.push_back(name);
      }
      fail(ExitCode::kData, "{}: the object has {} '{}'; its fields are {}", place.text(),
           member == object.end() ? "no field" : "no text in the field", field_,
           fmt::join(names, ", "));
    }
    return member->is_null() ? "" : member->get<std::string>();
  }

  DocumentRules rules_;
  std::vector<std::unique_ptr<TextEncoder>> encoders_;
  std::string field_;    // of the texts in lines of JSON; empty: a file is a document
  DocumentFrame frame_;  // the tokens around each document
};

// The set of characters is known only at the end: until then ids are code points.
class CharsSource final : public TextSource {
 public:
  explicit CharsSource(const ImportOptions& options)
      : TextSource(options, code_points(), std::nullopt) {}

  [[nodiscard]] std::uint32_t largest_id() const override { return 0x10FFFF; }
  void read(const InputPiece& piece, PieceWriter& to,
            const std::function<void(std::int64_t)>& read) override {
    TextSource::read(piece, to, read);
    to.index().characters = static_cast<CodePointsEncoder&>(encoder()).take_characters();
  }
  void set_characters(const std::vector<std::uint32_t>& characters) override {
    tokenizer_.emplace(
        Tokenizer::chars(std::vector<char32_t>(characters.begin(), characters.end())));
  }

 private:
  [[nodiscard]] static std::vector<std::unique_ptr<TextEncoder>> code_points() {
    std::vector<std::unique_ptr<TextEncoder>> one;
    one.push_back(std::make_unique<CodePointsEncoder>());
    return one;
  }
};

std::string tokenizer_name(const ImportOptions& options) {
  return options.tokenizer_file.empty() ? std::string(name_of(options.tokenizer))
                                        : options.tokenizer_file.string();
}

}  // namespace

std::unique_ptr<DocumentSource> open_text_source(const ImportOptions& options) {
  if (options.text_field.empty() && options.documents != DocumentRules()) {
    fail(ExitCode::kUsage,
         "documents are chosen by their text where each is a line of JSON; give --text-field, or "
         "leave out --deduplicate, --min-characters, --max-characters and --held-out");
  }
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
  std::vector<std::unique_ptr<TextEncoder>> encoders;
  for (std::int64_t i = 0; i < std::max<std::int64_t>(1, options.threads); ++i) {
    encoders.push_back(text_encoder(tokenizer->contents(), options.markers));
  }
  return std::make_unique<TextSource>(options, std::move(encoders), std::move(tokenizer));
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
