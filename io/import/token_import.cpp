#include "import/token_import.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/text.hpp"

#include "files/posix_file.hpp"
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
        dtype_(token_dtype(std::int64_t{largest_id} + 1)),
        file_(pending_.temporary()) {}

  void append(std::span<const std::uint32_t> ids) {
    append_stored(ids, dtype_, bytes_);
    tokens_ += std::ssize(ids);
    if (std::ssize(bytes_) >= kBufferBytes) {
      write();
    }
  }

  /// Ends appending and starts reading these tokens, in order.
  void rewind(std::vector<grid::Range> runs) {
    write();
    reader_.emplace(pending_.temporary(), ExitCode::kData);
    runs_ = std::move(runs);
  }

  /// Replaces `ids` by the next ids; false at the end.
  [[nodiscard]] bool next(std::vector<std::uint32_t>& ids) {
    if (run_ == runs_.size()) {
      return false;
    }
    grid::Range& run = runs_[run_];
    const std::int64_t count = std::min(kPieceTokens, run.count());
    bytes_.resize(static_cast<std::size_t>(count * size_bytes(dtype_)));
    reader_->read_at(run.begin * size_bytes(dtype_), bytes_);
    read_stored(bytes_, dtype_, ids);
    run.begin += count;
    run_ += run.count() == 0 ? 1 : 0;
    return true;
  }

  [[nodiscard]] std::int64_t tokens() const { return tokens_; }

 private:
  static constexpr std::int64_t kBufferBytes = std::int64_t{1} << 20;
  static constexpr std::int64_t kPieceTokens = std::int64_t{1} << 19;

  void write() {
    file_.write_at(tokens_ * size_bytes(dtype_) - std::ssize(bytes_), bytes_);
    bytes_.clear();
  }

  PendingFile pending_;
  DType dtype_;
  PosixFile file_;
  std::optional<InputFile> reader_;
  std::vector<std::byte> bytes_;
  std::int64_t tokens_ = 0;
  std::vector<grid::Range> runs_;  ///< to be read, from run_ on
  std::size_t run_ = 0;
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

/// Moves the ends of the splits to the nearest ends of documents, or pairs of them; each split has
/// some.
void cut_between_documents(const Documents& documents, SplitCounts& counts) {
  std::vector<std::int64_t> ends;
  const std::size_t each = documents.pairs ? 2 : 1;
  for (std::size_t i = each - 1; i < documents.ends.size(); i += each) {
    ends.push_back(documents.ends[i]);
  }
  /// Pre: there are ends before `last`.
  const auto nearest = [&](std::int64_t cut, auto last) {
    const auto end = std::lower_bound(ends.begin(), last, cut);
    const bool before = end == last || (end != ends.begin() && cut - *std::prev(end) <= *end - cut);
    return before ? std::prev(end) : end;
  };
  const auto total = nearest(counts.train + counts.test, ends.end());
  if (counts.test > 0 && total == ends.begin()) {
    fail(ExitCode::kData,
         "the first dialogue leaves nothing for the test split; give --split=1.0, or more of them");
  }
  counts.train = counts.test > 0 ? *nearest(counts.train, total) : *total;
  counts.test = *total - counts.train;
}

/// The documents of a source with those that are held out at the end, and the splits' sizes.
SplitDocuments held_out_documents(const TokenSource& source, SplitCounts& counts) {
  SplitDocuments split = split_documents(source.documents(), source.filter().held_out());
  const std::int64_t tokens = split.documents.ends.empty() ? 0 : split.documents.ends.back();
  counts = {.train = split.train_tokens, .test = tokens - split.train_tokens};
  if (counts.train == 0 || counts.test == 0) {
    fail(ExitCode::kData,
         "--held-out={} puts {} of {} documents into the test split; give a share that leaves some "
         "in each, or more documents",
         source.filter().rules().held_out, counts.test == 0 ? "none" : "all",
         count_text(std::ssize(source.filter().held_out())));
  }
  return split;
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
      options.format == ImportFormat::kText ? open_text_source(options)
      : holds_chats(options.format)         ? open_chat_source(options)
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
  std::optional<SplitDocuments> split;
  SplitCounts counts;
  if (source->tokens() < 0) {
    spill.emplace(options.output, source->largest_id());
    std::vector<std::uint32_t> ids;
    while (next(ids)) {
      spill->append(ids);
    }
    const std::vector<std::string> notes = source->filter().notes();
    if (spill->tokens() == 0 && !notes.empty()) {
      fail(ExitCode::kData, "no document is left to import; {}", fmt::join(notes, "; "));
    }
    if (options.documents.held_out > 0.0) {
      split = held_out_documents(*source, counts);
    }
    spill->rewind(split ? split->runs : std::vector<grid::Range>{{0, spill->tokens()}});
  }
  const std::int64_t tokens = spill ? spill->tokens() : source->tokens();
  if (split) {
    // Its sizes are known.
  } else if (options.test_inputs.empty()) {
    counts = parse_split(options.split, tokens, "tokens");
  } else {
    counts.train = source->ends()[options.inputs.size() - options.test_inputs.size() - 1];
    counts.test = tokens - counts.train;
    require_samples(options, counts, "tokens");
  }
  const Documents& documents = split ? split->documents : source->documents();
  if (holds_chats(options.format)) {
    require_some_count(documents, tokens);
    if (!split && options.test_inputs.empty()) {
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
  report.notes = source->filter().notes();
  if (split) {
    const auto& held_out = source->filter().held_out();
    report.notes.push_back(fmt::format("held out: {} of {} documents",
                                       count_text(std::ranges::count(held_out, true)),
                                       count_text(std::ssize(held_out))));
  }
  return report;
}

}  // namespace strata::io
