#include <algorithm>
#include <array>
#include <cstring>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "dataset/token_stream.hpp"
#include "files/user_file.hpp"
#include "import/megatron_index.hpp"
#include "import/token_source.hpp"

namespace strata::io {
namespace {

// Storage format of the ids of one file.
struct IdLayout {
  std::int64_t header_bytes = 0;
  std::int64_t id_bytes = 2;
  bool is_signed = false;
  std::int64_t tokens = 0;
  std::vector<std::int64_t> document_ends = {};
};

std::int64_t count_of(const UserFile& file, std::int64_t bytes, std::int64_t id_bytes) {
  if (bytes == 0) {
    fail(ExitCode::kData, "{} holds no tokens; leave it out", file.path.string());
  }
  if (bytes % id_bytes != 0) {
    fail(
        ExitCode::kData,
        "{} holds {} bytes of tokens, no whole number of {} bytes each: it was cut short, or is of "
        "another format",
        file.path.string(), count_text(bytes), id_bytes);
  }
  return bytes / id_bytes;
}

// An id as an unsigned number; a negative id becomes larger than any vocabulary.
std::uint64_t id_at(const std::byte* at, const IdLayout& layout) {
  std::uint64_t id = 0;
  std::memcpy(&id, at, static_cast<std::size_t>(layout.id_bytes));
  const bool negative = layout.is_signed && (id >> (8 * layout.id_bytes - 1) & 1U) != 0;
  return negative ? ~std::uint64_t{0} : id;
}

/// Refuses a file whose every second number is 0, as in one of numbers twice as wide.
void require_width(const UserFile& file, const IdLayout& layout) {
  constexpr std::int64_t kFewest = 8;
  constexpr std::int64_t kPiece = std::int64_t{1} << 16U;
  std::vector<std::byte> bytes;
  std::array<bool, 2> zero{true, true};  // of the even and of the odd ones
  for (std::int64_t read = 0; read < layout.tokens && (zero[0] || zero[1]); read += kPiece) {
    const std::int64_t count = std::min(kPiece, layout.tokens - read);
    bytes.resize(static_cast<std::size_t>(count * layout.id_bytes));
    file.read_exactly(bytes);
    for (std::int64_t i = 0; i < count; ++i) {
      bool& all = zero[static_cast<std::size_t>(i % 2)];
      all = all && id_at(bytes.data() + i * layout.id_bytes, layout) == 0;
    }
  }
  if (layout.tokens >= kFewest && (zero[0] || zero[1])) {
    const std::int64_t bits = 8 * layout.id_bytes;
    fail(ExitCode::kData,
         "{}: every second of its {} numbers of {} bits is 0, so they probably have more bits; "
         "give --token-bits={}",
         file.path.string(), count_text(layout.tokens), bits,
         bits == 16 ? "32 or 64, or 16 if they are right" : "64");
  }
}

IdLayout nanogpt_layout(const std::filesystem::path& path, std::int64_t token_bits) {
  UserFile file(path, ExitCode::kData);
  IdLayout layout;
  layout.id_bytes = token_bits == 0 ? 2 : token_bits / 8;
  layout.is_signed = token_bits == 64;
  layout.tokens = count_of(file, file.size_bytes, layout.id_bytes);
  if (token_bits == 0 || token_bits == 32) {
    require_width(file, layout);
  }
  return layout;
}

// The header has 256 int32: magic number, version, number of tokens, padding.
// Source: llm.c, dev/data/data_common.py.
IdLayout llmc_layout(const std::filesystem::path& path) {
  struct Kind {
    std::int32_t magic;
    std::int32_t version;
    std::int64_t id_bytes;
  };
  constexpr std::array<Kind, 2> kKinds{{{20240520, 1, 2}, {20240801, 7, 4}}};
  constexpr std::int64_t kHeaderBytes = 1024;
  UserFile file(path, ExitCode::kData);
  if (file.size_bytes < kHeaderBytes) {
    fail(ExitCode::kData, "{} has {} bytes; llm.c's token files begin with a header of {}",
         path.string(), file.size_bytes, kHeaderBytes);
  }
  std::array<std::int32_t, 3> header{};
  file.read_exactly(std::as_writable_bytes(std::span(header)));
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(),
                                 [&](const Kind& one) { return one.magic == header[0]; });
  if (kind == kKinds.end() || kind->version != header[1]) {
    fail(
        ExitCode::kData,
        "{} begins with the numbers {} and {}; llm.c's token files begin with {} and {}, or {} and "
        "{}",
        path.string(), header[0], header[1], kKinds[0].magic, kKinds[0].version, kKinds[1].magic,
        kKinds[1].version);
  }
  IdLayout layout{kHeaderBytes, kind->id_bytes};
  layout.tokens = count_of(file, file.size_bytes - kHeaderBytes, layout.id_bytes);
  if (layout.tokens != header[2]) {
    fail(ExitCode::kData, "{} promises {} tokens but holds {}: it was cut short; fetch it again",
         path.string(), count_text(header[2]), count_text(layout.tokens));
  }
  return layout;
}

IdLayout layout_of(const ImportOptions& options, const std::filesystem::path& path) {
  if (options.format == ImportFormat::kLlmcTokens) {
    return llmc_layout(path);
  }
  if (options.format == ImportFormat::kNanoGptTokens) {
    return nanogpt_layout(path, options.token_bits);
  }
  const UserFile file(path, ExitCode::kData);
  const MegatronIndex index = check_megatron_index(path, file.size_bytes);
  return {0, index.id_bytes, index.is_signed, count_of(file, file.size_bytes, index.id_bytes),
          index.document_ends};
}

class TokenFiles : public TokenStream {
 public:
  TokenFiles(const ImportOptions& options, std::vector<std::filesystem::path> files,
             std::optional<Tokenizer> tokenizer)
      : TokenStream(std::move(files), std::move(tokenizer)),
        vocabulary_(tokenizer_ ? tokenizer_->vocabulary() : options.vocabulary) {
    for (const std::filesystem::path& file : files_) {
      layouts_.push_back(layout_of(options, file));
      require_vocabulary_fits(file, layouts_.back(), options);
      for (const std::int64_t end : layouts_.back().document_ends) {
        documents_.ends.push_back(tokens_ + end);
      }
      tokens_ += layouts_.back().tokens;
      ends_.push_back(tokens_);
    }
    if (tokenizer_ && documents_.ends.empty()) {
      separator_ = separator_of(*tokenizer_);
    }
  }

  [[nodiscard]] std::int64_t tokens() const override { return tokens_; }
  [[nodiscard]] std::int64_t vocabulary() const override { return vocabulary_; }
  [[nodiscard]] bool next(std::vector<std::uint32_t>& ids) override;

 private:
  /// Tokens of the files before one.
  [[nodiscard]] std::int64_t ends_before(std::size_t file) const {
    return file == 0 ? 0 : ends_[file - 1];
  }
  /// Refuses ids of a width that cannot hold the vocabulary: larger ones were cut.
  void require_vocabulary_fits(const std::filesystem::path& file, const IdLayout& layout,
                               const ImportOptions& options) const {
    const std::int64_t bits = 8 * layout.id_bytes;
    if (bits >= 32 || vocabulary_ <= std::int64_t{1} << bits) {
      return;
    }
    fail(ExitCode::kData, "{} has token ids of {} bits, which cannot hold a vocabulary of {}; {}",
         file.string(), bits, count_text(vocabulary_),
         options.format == ImportFormat::kNanoGptTokens
             ? "if its ids have 32 or 64 bits, give --token-bits, else the tokenizer or the "
               "vocabulary that they were made with"
             : "give the tokenizer or the vocabulary that they were made with");
  }

  std::int64_t vocabulary_;
  std::vector<IdLayout> layouts_;
  std::int64_t tokens_ = 0;
  std::size_t opened_ = 0;
  std::optional<UserFile> file_;
  std::int64_t read_ = 0;  // of the open file
  std::vector<std::byte> bytes_;
  DocumentSeparator separator_;  // none where the files say where documents end
};

bool TokenFiles::next(std::vector<std::uint32_t>& ids) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 18;
  ids.clear();
  if (!file_ || read_ == layouts_[opened_ - 1].tokens) {
    if (opened_ == files_.size()) {
      return false;
    }
    file_.emplace(files_[opened_], ExitCode::kData);
    file_->skip(layouts_[opened_++].header_bytes);
    read_ = 0;
  }
  const IdLayout& layout = layouts_[opened_ - 1];
  const std::int64_t count = std::min(kPiece, layout.tokens - read_);
  bytes_.resize(static_cast<std::size_t>(count * layout.id_bytes));
  file_->read_exactly(bytes_);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t id = id_at(bytes_.data() + i * layout.id_bytes, layout);
    if (id >= static_cast<std::uint64_t>(vocabulary_)) {
      fail(
          ExitCode::kData,
          "{} holds {} as its token {} (counted from 0); a vocabulary of {} has the tokens 0 to {}",
          file_->path.string(),
          id == ~std::uint64_t{0} ? "a negative number" : count_text(static_cast<std::int64_t>(id)),
          count_text(read_ + i), count_text(vocabulary_), count_text(vocabulary_ - 1));
    }
    ids.push_back(static_cast<std::uint32_t>(id));
    const std::int64_t before = ends_before(opened_ - 1) + read_ + i;
    if (static_cast<std::int64_t>(id) == separator_.id && before > 0) {
      documents_.ends.push_back(before + (separator_.begins ? 0 : 1));
    }
  }
  read_ += count;
  if (opened_ == files_.size() && read_ == layout.tokens && !documents_.ends.empty() &&
      documents_.ends.back() < tokens_) {
    documents_.ends.push_back(tokens_);
  }
  return true;
}

}  // namespace

std::unique_ptr<TokenStream> open_token_files(const ImportOptions& options) {
  constexpr std::int64_t kMostIds = std::int64_t{1} << 31;
  if (options.separator != Separator::kAuto) {
    fail(ExitCode::kUsage, "--separator is for --format=text; tokens of {} are taken as they are",
         name_of(options.format));
  }
  if (options.tokenizer == TokenizerKind::kChars) {
    fail(ExitCode::kUsage,
         "--tokenizer=chars is made from text and does not fit --format={}; give "
         "--vocabulary=N, or --tokenizer=bytes, gpt2 or a tokenizer's file",
         name_of(options.format));
  }
  const bool named = options.tokenizer != TokenizerKind::kNone || !options.tokenizer_file.empty();
  if ((options.vocabulary > 0) == named) {
    fail(
        ExitCode::kUsage,
        "--format={} needs either --vocabulary=N, the number of token ids, or the --tokenizer that "
        "the tokens were made with",
        name_of(options.format));
  }
  if (options.vocabulary > kMostIds) {
    fail(ExitCode::kUsage, "--vocabulary={} is more than {}", options.vocabulary, kMostIds);
  }
  std::vector<std::filesystem::path> files = options.inputs;
  if (options.format == ImportFormat::kMegatronTokens) {
    for (std::filesystem::path& file : files) {
      file = megatron_bin(file);
    }
  }
  return std::make_unique<TokenFiles>(options, std::move(files), given_tokenizer(options));
}

}  // namespace strata::io
