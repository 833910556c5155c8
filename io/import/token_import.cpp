#include "import/token_import.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/error.hpp"
#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"

#include "import/import_output.hpp"
#include "import/pending_file.hpp"
#include "import/resolved_inputs.hpp"
#include "import/split_text.hpp"
#include "import/token_layout.hpp"
#include "import/token_source.hpp"
#include "import/token_writer.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

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

/// All that decides the tokens of a piece besides the piece.
std::string settings_text(const ImportOptions& options, const DocumentSource& source) {
  constexpr int kPieceVersion = 1;  // of encoding and of the files of pieces
  const DocumentRules& rules = options.documents;
  // The checksum leaves the frame of a document out.
  const DocumentFrame frame =
      source.tokenizer() != nullptr ? source.tokenizer()->frame() : DocumentFrame();
  return fmt::format("{} {} {} {:x} {}|{} {} {} {} {} {} {} {} {} {} {} {} {} {}\n", kPieceVersion,
                     name_of(options.format), name_of(options.tokenizer),
                     source.tokenizer() != nullptr ? tokenizer_checksum(*source.tokenizer()) : 0,
                     fmt::join(frame.before, ","), fmt::join(frame.after, ","), source.separator(),
                     name_of(options.separator), static_cast<int>(options.markers),
                     options.text_field.size(), options.text_field, source.chat_template(),
                     fmt::join(options.roles, ","), static_cast<int>(rules.repeated),
                     rules.min_characters, rules.max_characters, rules.held_out > 0.0,
                     rules.max_tokens, name_of(rules.too_long));
}

/// The pieces of an import of documents, which its ranks read in turn.
class PieceRounds {
 public:
  PieceRounds(const ImportOptions& options, DocumentSource& source, const ImportRanks& ranks)
      : options_(options),
        source_(source),
        ranks_(ranks),
        pieces_(pieces_of(source.files(), source.files().size() - options.test_inputs.size(),
                          source.cut_files())),
        dtype_(source.largest_id() < 256 ? DType::kUint8
                                         : token_dtype(std::int64_t{source.largest_id()} + 1)) {
    const std::string settings = settings_text(options, source);
    for (const InputPiece& piece : pieces_) {
      keys_.push_back(hash_of(settings + piece.identity));
    }
  }

  /// Names the pieces, with the same text on all ranks that see the same files.
  [[nodiscard]] std::string text() const {
    return hash_text(hash_of(std::as_bytes(std::span(keys_))));
  }
  [[nodiscard]] DType dtype() const { return dtype_; }
  /// Those of the pieces that were there already, of all ranks.
  [[nodiscard]] std::int64_t kept() const { return kept_; }
  [[nodiscard]] std::int64_t count() const { return std::ssize(pieces_); }

  /// Removes files of other pieces, which other imports left.
  void remove_others(const OutputDirectory& output) const {
    std::unordered_set<std::string> own;
    for (const std::uint64_t key : keys_) {
      own.insert(piece_path(options_.output, key).filename().string());
    }
    output.remove_pieces([&](const std::string& name) { return !own.contains(name); });
  }

  /// Reads all pieces, one a rank in each round, so that the first error is that of the first bad
  /// piece.
  void read(const SampleProgress& progress) {
    std::int64_t done = 0;
    for (std::size_t first = 0; first < pieces_.size();
         first += static_cast<std::size_t>(ranks_.count)) {
      const std::vector<std::string> texts = ranks_.gather([&] {
        const std::size_t own = first + static_cast<std::size_t>(ranks_.rank);
        return own < pieces_.size() ? read_piece(own, done, progress) : "0 0";
      });
      for (const std::string& text : texts) {
        std::int64_t tokens = 0;
        const std::vector<std::string> words = split_words(text);
        require(parse_int64(words.front(), tokens), "{} is no number of tokens", text);
        done += tokens;
        kept_ += words.back() == "1" ? 1 : 0;
      }
    }
  }

  /// Calls add() with each piece, its index, and whether it is the last of its split.
  void merge(LayoutMaker& maker, SplitCounts& counts) const {
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      maker.add(keys_[i], PieceReader(options_.output, keys_[i], dtype_).index());
      const bool is_last = i + 1 == pieces_.size();
      if (is_last || pieces_[i + 1].is_test != pieces_[i].is_test) {
        maker.end_split();
        (pieces_[i].is_test ? counts.test : counts.train) = maker.tokens() - counts.train;
      }
    }
  }

 private:
  /// Returns: the number of its tokens, and 1 where the piece was there already, else 0.
  [[nodiscard]] std::string read_piece(std::size_t number, std::int64_t done,
                                       const SampleProgress& progress) {
    const std::uint64_t key = keys_[number];
    if (const auto tokens = PieceReader::verified_tokens(options_.output, key, dtype_)) {
      return fmt::format("{} 1", *tokens);
    }
    PieceWriter to(options_.output, key, dtype_);
    source_.read(pieces_[number], to, [&](std::int64_t tokens) {
      if (progress) {
        progress(done + tokens, 0);
      }
    });
    to.finish();
    return fmt::format("{} 0", to.tokens());
  }

  const ImportOptions& options_;
  DocumentSource& source_;
  const ImportRanks& ranks_;
  std::vector<InputPiece> pieces_;
  std::vector<std::uint64_t> keys_;
  DType dtype_;
  std::int64_t kept_ = 0;
};

/// The sizes of the splits that files of tokens make.
SplitCounts counts_of(const ImportOptions& options, std::int64_t tokens, SplitCounts by_files) {
  if (options.test_inputs.empty()) {
    return parse_split(options.split, tokens, "tokens");
  }
  require_samples(options, by_files, "tokens");
  return by_files;
}

/// Writes, of the splits, what this rank writes.
void write_shards(std::vector<TokenSplitWriter>& writers, LayoutReader& reader,
                  const std::vector<std::uint32_t>& characters) {
  constexpr std::int64_t kPieceTokens = std::int64_t{1} << 19;
  std::vector<std::uint32_t> ids;
  std::vector<std::uint32_t> numbers(characters.empty() ? 0 : characters.back() + 1);
  for (std::size_t i = 0; i < characters.size(); ++i) {
    numbers[characters[i]] = static_cast<std::uint32_t>(i);
  }
  std::int64_t begin = 0;
  for (TokenSplitWriter& writer : writers) {
    for (const grid::Range& shard : writer.own()) {
      writer.begin_shard(shard.begin);
      for (std::int64_t at = shard.begin; at < shard.end; at += std::ssize(ids)) {
        reader.read(begin + at, std::min(kPieceTokens, shard.end - at), ids);
        if (!numbers.empty()) {
          std::ranges::transform(ids, ids.begin(), [&](std::uint32_t id) { return numbers[id]; });
        }
        writer.append(ids);
      }
    }
    begin += writer.samples();
  }
}

void set_documents(std::vector<TokenSplitWriter>& writers, const Documents& documents) {
  std::int64_t begin = 0;
  for (TokenSplitWriter& writer : writers) {
    // One text says nothing of its documents.
    if (documents.ends.size() > 1 || !documents.counted.empty()) {
      writer.set_documents(documents.part(begin, writer.samples()));
    }
    begin += writer.samples();
  }
}

TokenFacts facts_of(const ImportOptions& options, const TokenSource& source) {
  return {fmt::format("{}: {}", name_of(options.format), source.description()), source.vocabulary(),
          source.tokenizer()};
}

ImportReport import_token_files(const ImportOptions& options, const OutputDirectory& output,
                                const SampleProgress& progress) {
  const std::unique_ptr<TokenStream> source = open_token_files(options);
  const std::int64_t tokens = source->tokens();
  SplitCounts by_files;
  if (!options.test_inputs.empty()) {
    by_files.train = source->ends()[options.inputs.size() - options.test_inputs.size() - 1];
    by_files.test = tokens - by_files.train;
  }
  const SplitCounts counts = counts_of(options, tokens, by_files);
  const DType dtype = token_dtype(source->vocabulary());
  check_space(options, (counts.train + counts.test) * size_bytes(dtype));
  std::vector<TokenSplitWriter> writers = open_writers<TokenSplitWriter>(options, counts, dtype);
  std::int64_t done = 0;
  write_splits(writers, [&](std::vector<std::uint32_t>& ids) {
    const bool more = source->next(ids);
    done += more ? std::ssize(ids) : 0;
    if (more && progress) {
      progress(done, tokens);
    }
    return more;
  });
  set_documents(writers, source->documents());
  ImportReport report = publish(&output, writers, facts_of(options, *source), tokens);
  report.vocabulary = source->vocabulary();
  return report;
}

/// What rank 0 makes of the pieces.
TokenLayout layout_of(const ImportOptions& options, const PieceRounds& rounds, LayoutMaker& maker) {
  SplitCounts by_files;
  rounds.merge(maker, by_files);
  const DocumentFilter& filter = maker.filter();
  const std::vector<std::string> notes = filter.notes();
  if (maker.tokens() == 0 && !notes.empty()) {
    fail(ExitCode::kData, "no document is left to import; {}", fmt::join(notes, "; "));
  }
  if (maker.tokens() == 0 && (holds_chats(options.format) || !options.text_field.empty())) {
    fail(ExitCode::kData, "{} is empty, an object with text per line was expected",
         joined_file_names(options.inputs));
  }
  TokenLayout layout = maker.layout();
  if (filter.rules().held_out == 0.0) {
    layout.counts = counts_of(options, maker.tokens(), by_files);
  } else if (layout.counts.train == 0 || layout.counts.test == 0) {
    fail(ExitCode::kData,
         "--held-out={} puts {} of {} documents into the test split; give a share that leaves some "
         "in each, or more documents",
         filter.rules().held_out, layout.counts.test == 0 ? "none" : "all",
         count_text(std::ssize(filter.held_out())));
  }
  if (holds_chats(options.format)) {
    require_some_count(maker.documents(), maker.tokens());
    if (filter.rules().held_out == 0.0 && options.test_inputs.empty()) {
      cut_between_documents(maker.documents(), layout.counts);
    }
  }
  return layout;
}

ImportReport import_documents(const ImportOptions& options, const OutputDirectory* output,
                              const SampleProgress& progress, const ImportRanks& ranks) {
  std::unique_ptr<DocumentSource> source;
  std::optional<PieceRounds> rounds;
  const std::vector<std::string> seen = ranks.gather([&] {
    source = options.format == ImportFormat::kText ? open_text_source(options)
                                                   : open_chat_source(options);
    rounds.emplace(options, *source, ranks);
    return rounds->text();
  });
  static_cast<void>(ranks.on_first([&] {
    if (std::ranges::find_if(seen, [&](const auto& text) { return text != seen[0]; }) !=
        seen.end()) {
      fail(ExitCode::kUsage,
           "the ranks do not see the same files, or not with the same sizes and times; import from "
           "a file system that all nodes share");
    }
    rounds->remove_others(*output);
    return std::string();
  }));
  rounds->read(progress);

  LayoutMaker maker(options.documents, source->separator() >= 0, source->pairs());
  TokenLayout layout;
  std::optional<PendingFile> shared;
  const std::filesystem::path path = ranks.on_first([&] {
    layout = layout_of(options, *rounds, maker);
    if (ranks.count == 1) {
      return std::string();
    }
    shared.emplace(options.output / "tokens");
    layout.write(shared->temporary());
    return shared->temporary().string();
  });
  std::vector<TokenSplitWriter> writers;
  static_cast<void>(ranks.gather([&] {
    if (ranks.rank > 0) {
      layout = TokenLayout::read(path);
    }
    source->set_characters(layout.characters);
    const DType dtype = token_dtype(source->vocabulary());
    if (ranks.rank == 0) {
      check_space(options, (layout.counts.train + layout.counts.test) * size_bytes(dtype));
    }
    writers = open_writers<TokenSplitWriter>(options, layout.counts, dtype, ranks);
    LayoutReader reader(layout, options.output, rounds->dtype());
    write_shards(writers, reader, layout.characters);
    return std::string();
  }));
  set_documents(writers, maker.documents());
  TokenFacts facts = facts_of(options, *source);
  facts.chat_template = source->chat_template();
  ImportReport report = publish(output, writers, facts, maker.tokens(), ranks);
  report.vocabulary = source->vocabulary();
  report.notes = source->notes();
  std::ranges::copy(maker.filter().notes(), std::back_inserter(report.notes));
  if (options.documents.held_out > 0.0) {
    const auto& held_out = maker.filter().held_out();
    report.notes.push_back(fmt::format("held out: {} of {} documents",
                                       count_text(std::ranges::count(held_out, true)),
                                       count_text(std::ssize(held_out))));
  }
  if (rounds->kept() > 0) {
    report.notes.push_back(
        fmt::format("{} of {} pieces of the files were read before this import was started anew",
                    rounds->kept(), rounds->count()));
  }
  return report;
}

}  // namespace

ImportReport import_tokens(const ImportOptions& options, const OutputDirectory* output,
                           const SampleProgress& progress, const ImportRanks& ranks) {
  return options.format == ImportFormat::kText || holds_chats(options.format)
             ? import_documents(options, output, progress, ranks)
             : import_token_files(options, *output, progress);
}

}  // namespace strata::io
