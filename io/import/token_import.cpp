#include "import/token_import.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "files/posix_file.hpp"
#include "files/user_file.hpp"
#include "import/import_output.hpp"
#include "import/pending_file.hpp"
#include "import/resolved_inputs.hpp"
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
  void rewind() { reader_.emplace(pending_.temporary(), ExitCode::kData); }

  /// Replaces `ids` by the next ids; false at the end.
  [[nodiscard]] bool next(std::vector<std::uint32_t>& ids) {
    constexpr std::int64_t kPiece = std::int64_t{1} << 19;
    const auto count = static_cast<std::size_t>(std::min(kPiece, tokens_ - read_));
    bytes_.resize(count * id_bytes_);
    reader_->read_exactly(bytes_);
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
  std::optional<UserFile> reader_;
  std::vector<std::byte> bytes_;
  std::int64_t tokens_ = 0;
  std::int64_t read_ = 0;
};

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

/// Refuses dialogues of which nothing, or everything, is learned.
void require_some_count(const Documents& documents, std::int64_t tokens) {
  const std::int64_t counted = documents.counted.empty() ? 0 : documents.counted_tokens();
  if (counted == 0 || counted == tokens) {
    fail(ExitCode::kData, "{} of the {} tokens count as targets; {}", counted == 0 ? "none" : "all",
         count_text(tokens),
         counted == 0 ? "there is no message of the roles that --roles names"
                      : "import them as --format=text, or let some segments not count");
  }
}

/// Moves the cut between the splits to the nearest end of a document, so that both have some.
void cut_between_documents(const Documents& documents, SplitCounts& counts) {
  const std::int64_t total = counts.train + counts.test;
  const auto first = documents.ends.begin();
  const auto last = std::ranges::lower_bound(documents.ends, total);
  if (first == last) {
    fail(ExitCode::kData,
         "the first dialogue leaves nothing for the test split; give --split=1.0, or more of them");
  }
  auto cut = std::lower_bound(first, last, counts.train);
  if (cut == last || (cut != first && counts.train - *std::prev(cut) <= *cut - counts.train)) {
    --cut;
  }
  counts.train = *cut;
  counts.test = total - counts.train;
}

void renumber(std::span<const std::uint32_t> renumbering, std::vector<std::uint32_t>& ids) {
  if (!renumbering.empty()) {
    std::transform(ids.begin(), ids.end(), ids.begin(),
                   [&](std::uint32_t id) { return renumbering[id]; });
  }
}

}  // namespace

ImportReport import_tokens(const ImportOptions& options, const OutputDirectory& output,
                           const SampleProgress& progress) {
  const std::unique_ptr<TokenSource> source =
      options.format == ImportFormat::kText   ? open_text_source(options)
      : options.format == ImportFormat::kChat ? open_chat_source(options)
                                              : open_token_files(options);
  std::int64_t done = 0;
  const auto next = [&](std::vector<std::uint32_t>& ids) {
    const bool more = source->next(ids);
    done += more ? std::ssize(ids) : 0;
    if (more && progress) {
      progress(done, std::max<std::int64_t>(0, source->tokens()));
    }
    return more;
  };
  std::optional<SpillFile> spill;
  if (source->tokens() < 0) {
    spill.emplace(options.output, source->largest_id());
    std::vector<std::uint32_t> ids;
    while (next(ids)) {
      spill->append(ids);
    }
    spill->rewind();
  }
  const std::int64_t tokens = spill ? spill->tokens() : source->tokens();
  SplitCounts counts;
  if (options.test_inputs.empty()) {
    counts = parse_split(options.split, tokens, "tokens");
  } else {
    counts.train = source->ends()[options.inputs.size() - options.test_inputs.size() - 1];
    counts.test = tokens - counts.train;
    require_samples(options, counts, "tokens");
  }
  const Documents& documents = source->documents();
  if (options.format == ImportFormat::kChat) {
    require_some_count(documents, tokens);
    if (options.test_inputs.empty() && counts.test > 0) {
      cut_between_documents(documents, counts);
    }
  }
  const DType dtype = token_dtype(source->vocabulary());
  check_space(options, (counts.train + counts.test) * size_bytes(dtype));
  std::vector<TokenSplitWriter> writers = open_writers<TokenSplitWriter>(options, counts, dtype);
  const std::vector<std::uint32_t> renumbering = source->renumbering();
  write_splits(writers, [&](std::vector<std::uint32_t>& ids) {
    const bool more = spill ? spill->next(ids) : next(ids);
    renumber(renumbering, ids);
    return more;
  });
  std::int64_t begin = 0;
  for (TokenSplitWriter& writer : writers) {
    // One text says nothing of its documents.
    if (documents.ends.size() > 1 || !documents.counted.empty()) {
      writer.set_documents(documents.part(begin, writer.samples()));
    }
    begin += writer.samples();
  }
  const TokenFacts facts{fmt::format("{}: {}", name_of(options.format), source->description()),
                         source->vocabulary(), source->tokenizer()};
  ImportReport report = publish(output, writers, facts, tokens);
  report.vocabulary = source->vocabulary();
  return report;
}

}  // namespace strata::io
