#include "import/token_import.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "strata/core/error.hpp"

#include "files/binary_file.hpp"
#include "files/posix_file.hpp"
#include "import/import_output.hpp"
#include "import/pending_file.hpp"
#include "import/split_text.hpp"
#include "import/token_source.hpp"
#include "import/token_writer.hpp"

namespace strata::io {
namespace {

// Spills tokens to a file until their number and vocabulary are known.
class SpillFile {
 public:
  SpillFile(const std::filesystem::path& directory, std::uint32_t largest_id)
      : pending_(directory / "tokens"),
        id_bytes_(static_cast<std::size_t>(size_bytes(token_dtype(std::int64_t{largest_id} + 1)))),
        file_(pending_.temporary()) {}

  void append(std::span<const std::uint32_t> ids) {
    bytes_.resize(ids.size() * id_bytes_);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      std::memcpy(bytes_.data() + i * id_bytes_, &ids[i], id_bytes_);
    }
    file_.write_at(tokens_ * static_cast<std::int64_t>(id_bytes_), bytes_);
    tokens_ += std::ssize(ids);
  }

  /// Ends appending and starts reading.
  void rewind() { reader_.emplace(pending_.temporary()); }

  /// Replaces `ids` by the next ids; false at the end.
  [[nodiscard]] bool next(std::vector<std::uint32_t>& ids) {
    constexpr std::int64_t kPiece = std::int64_t{1} << 19;
    const auto count = static_cast<std::size_t>(std::min(kPiece, tokens_ - read_));
    bytes_.resize(count * id_bytes_);
    reader_->read(bytes_);
    ids.assign(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(&ids[i], bytes_.data() + i * id_bytes_, id_bytes_);
    }
    read_ += static_cast<std::int64_t>(count);
    return count > 0;
  }

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  PendingFile pending_;
  std::size_t id_bytes_;
  PosixFile file_;
  std::optional<BinaryFile> reader_;
  std::vector<std::byte> bytes_;
  std::int64_t tokens_ = 0;
  std::int64_t read_ = 0;
};

std::unique_ptr<TokenSource> open_source(const ImportOptions& options) {
  return options.format == ImportFormat::kText ? open_text_source(options)
                                               : open_token_files(options);
}

// Writes the splits; `next` reads the tokens.
template <typename Next>
void write_splits(std::vector<TokenSplitWriter>& writers, Next&& next) {
  std::vector<std::uint32_t> ids;
  std::span<const std::uint32_t> rest;
  for (TokenSplitWriter& writer : writers) {
    while (writer.tokens_left() > 0) {
      if (rest.empty()) {
        require(next(ids), "a split lacks {} tokens", writer.tokens_left());
        rest = ids;
      }
      const auto count = static_cast<std::size_t>(std::min(std::ssize(rest), writer.tokens_left()));
      writer.append(rest.first(count));
      rest = rest.subspan(count);
    }
  }
}

void renumber(std::span<const std::uint32_t> renumbering, std::vector<std::uint32_t>& ids) {
  if (!renumbering.empty()) {
    std::transform(ids.begin(), ids.end(), ids.begin(),
                   [&](std::uint32_t id) { return renumbering[id]; });
  }
}

class Import {
 public:
  Import(const ImportOptions& options, const OutputDirectory& output,
         const SampleProgress& progress)
      : options_(options), output_(output), progress_(progress), source_(open_source(options)) {}

  ImportReport run() {
    std::optional<SpillFile> spill;
    if (source_->tokens() < 0) {
      spill.emplace(options_.output, source_->largest_id());
      std::vector<std::uint32_t> ids;
      while (next(ids)) {
        spill->append(ids);
      }
      spill->rewind();
    }
    const std::int64_t tokens = spill ? spill->tokens() : source_->tokens();
    const SplitCounts counts = parse_split(options_.split, tokens, "tokens");
    const DType dtype = token_dtype(source_->vocabulary());
    check_space(options_, (counts.train + counts.test) * size_bytes(dtype));
    std::vector<TokenSplitWriter> writers = open_writers<TokenSplitWriter>(options_, counts, dtype);
    const std::vector<std::uint32_t> renumbering = source_->renumbering();
    write_splits(writers, [&](std::vector<std::uint32_t>& ids) {
      const bool more = spill ? spill->next(ids) : next(ids);
      renumber(renumbering, ids);
      return more;
    });
    const TokenFacts facts{fmt::format("{}: {}", name_of(options_.format), source_->description()),
                           source_->vocabulary(), source_->tokenizer()};
    ImportReport report = publish(output_, writers, facts, tokens);
    report.vocabulary = source_->vocabulary();
    return report;
  }

 private:
  [[nodiscard]] bool next(std::vector<std::uint32_t>& ids) {
    if (!source_->next(ids)) {
      return false;
    }
    done_ += std::ssize(ids);
    if (progress_) {
      progress_(done_, std::max<std::int64_t>(0, source_->tokens()));
    }
    return true;
  }

  const ImportOptions& options_;
  const OutputDirectory& output_;
  const SampleProgress& progress_;
  std::unique_ptr<TokenSource> source_;
  std::int64_t done_ = 0;
};

}  // namespace

ImportReport import_tokens(const ImportOptions& options, const OutputDirectory& output,
                           const SampleProgress& progress) {
  return Import(options, output, progress).run();
}

}  // namespace strata::io
