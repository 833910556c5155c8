#include <algorithm>
#include <string_view>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/io/dataset.hpp"

#include "dataset/dataset_format.hpp"
#include "dataset/dataset_parts.hpp"
#include "dataset/dataset_read.hpp"
#include "tokenizer/tokenizer_contents.hpp"

namespace strata::io {
namespace {

namespace names = dataset_format;

std::vector<std::uint32_t> code_points(const TokenizerContents& contents) {
  return {contents.characters.begin(), contents.characters.end()};
}

/// The tokens' bytes concatenated, with the end offset of each token.
struct JoinedTokens {
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> ends;

  explicit JoinedTokens(const std::vector<std::string>& tokens) {
    for (const std::string& token : tokens) {
      bytes.insert(bytes.end(), token.begin(), token.end());
      ends.push_back(std::ssize(bytes));
    }
  }
};

[[noreturn]] void fail_damaged(const DatasetInfo& info) {
  fail(ExitCode::kData, "the tokenizer in {} is damaged; restore the file or import anew",
       info.path.string());
}

std::vector<char32_t> read_characters(const hdf5::File& file, const DatasetInfo& info) {
  constexpr std::uint32_t kLast = 0x10FFFF;
  const auto stored = read_vector<std::uint32_t>(file, names::kCharacters);
  // Strictly ascending, so there are no duplicates.
  const bool ascending =
      std::adjacent_find(stored.begin(), stored.end(), std::greater_equal<>()) == stored.end();
  if (stored.empty() || !ascending || stored.back() > kLast) {
    fail_damaged(info);
  }
  return {stored.begin(), stored.end()};
}

/// Whether every byte is a token, and so are the operands and the result of each merge.
bool is_complete(const BytePairTables& tables) {
  const std::unordered_set<std::string_view> tokens(tables.tokens.begin(), tables.tokens.end());
  for (int value = 0; value < 256; ++value) {
    const char byte = static_cast<char>(value);
    if (!tokens.contains({&byte, 1})) {
      return false;
    }
  }
  const auto count = static_cast<std::int64_t>(tables.tokens.size());
  return tables.separator >= -1 && tables.separator < count &&
         std::ranges::is_sorted(tables.special, std::ranges::less_equal()) &&
         std::ranges::all_of(tables.special, [&](std::uint32_t id) { return id < count; }) &&
         std::ranges::all_of(tables.merges, [&](const auto& merge) {
           const auto [left, right] = merge;
           return left < count && right < count &&
                  tokens.contains(tables.tokens[left] + tables.tokens[right]);
         });
}

/// As in "128000 $A": ids before and after a document.
std::string text_of(const DocumentFrame& frame) {
  return fmt::format("{}{}$A{}{}", fmt::join(frame.before, " "), frame.before.empty() ? "" : " ",
                     frame.after.empty() ? "" : " ", fmt::join(frame.after, " "));
}

/// The frame that text_of() wrote; empty where there is none.
DocumentFrame read_frame(const hdf5::File& file, std::int64_t vocabulary, const DatasetInfo& info) {
  DocumentFrame frame;
  if (!file.has_attribute(names::kDocumentFrame)) {
    return frame;
  }
  bool after = false;
  for (const std::string& word : split_words(file.text(names::kDocumentFrame))) {
    std::int64_t id = -1;
    if (word == "$A" && !after) {
      after = true;
    } else if (parse_int64(word, id) && id >= 0 && id < vocabulary) {
      (after ? frame.after : frame.before).push_back(static_cast<std::uint32_t>(id));
    } else {
      fail_damaged(info);
    }
  }
  if (!after) {
    fail_damaged(info);
  }
  return frame;
}

template <typename Enum>
Enum read_enum(const hdf5::File& file, const char* name, const DatasetInfo& info) {
  const auto value = enum_from_name<Enum>(file.text(name));
  if (!value) {
    fail_damaged(info);
  }
  return *value;
}

BytePairTables read_pairs(const hdf5::File& file, const DatasetInfo& info) {
  const auto bytes = read_vector<std::uint8_t>(file, names::kTokenBytes);
  const auto ends = read_vector<std::int64_t>(file, names::kTokenEnds);
  const hdf5::Dataset merges = file.open_dataset(names::kMerges);
  BytePairTables tables;
  tables.separator = file.int64(names::kSeparator);
  if (info.tokenizer == TokenizerKind::kBytePairs) {
    tables.pattern = read_enum<SplitPattern>(file, names::kSplitPattern, info);
    tables.order = read_enum<MergeOrder>(file, names::kMergeOrder, info);
    tables.whole_words = file.int64(names::kWholeWords) != 0 ? WholeWords::kYes : WholeWords::kNo;
    tables.special = read_vector<std::uint32_t>(file, names::kSpecialTokens);
    tables.frame = read_frame(file, std::ssize(ends), info);
  } else if (tables.separator >= 0) {
    tables.special = {static_cast<std::uint32_t>(tables.separator)};
  }
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    if (end <= begin || end > std::ssize(bytes)) {
      fail_damaged(info);
    }
    tables.tokens.emplace_back(bytes.begin() + begin, bytes.begin() + end);
    begin = end;
  }
  if (merges.shape().rank() != 2 || merges.shape()[1] != 2 || merges.dtype() != DType::kUint32) {
    fail_damaged(info);
  }
  tables.merges.resize(static_cast<std::size_t>(merges.shape()[0]));
  merges.read(std::as_writable_bytes(std::span(tables.merges)));
  if (!is_complete(tables)) {
    fail_damaged(info);
  }
  return tables;
}

/// How the tables are used.
std::string rules_text(const BytePairTables& tables) {
  return fmt::format("{} {} {}", name_of(tables.pattern), name_of(tables.order),
                     tables.whole_words == WholeWords::kYes ? 1 : 0);
}

}  // namespace

std::uint64_t tokenizer_checksum(const Tokenizer& tokenizer) {
  const TokenizerContents& contents = tokenizer.contents();
  StreamingHash hash;
  hash.update(std::as_bytes(std::span(name_of(contents.kind))));
  hash.update(std::as_bytes(std::span(contents.characters)));
  if (contents.pairs) {
    const BytePairTables& tables = contents.pairs->tables();
    const JoinedTokens joined(tables.tokens);
    hash.update(std::as_bytes(std::span(joined.bytes)));
    hash.update(std::as_bytes(std::span(joined.ends)));
    hash.update(std::as_bytes(std::span(tables.merges)));
    hash.update(std::as_bytes(std::span(&tables.separator, 1)));
    if (contents.kind == TokenizerKind::kBytePairs) {
      const std::string rules = rules_text(tables);
      hash.update(std::as_bytes(std::span(rules)));
      hash.update(std::as_bytes(std::span(tables.special)));
    }
  }
  if (contents.pieces) {
    hash.update(std::as_bytes(std::span(contents.pieces->model())));
  }
  return hash.digest();
}

std::int64_t stored_bytes(const Tokenizer& tokenizer) {
  constexpr std::int64_t kTableOverheadBytes = 4 * 1024;
  const TokenizerContents& contents = tokenizer.contents();
  std::int64_t bytes = kTableOverheadBytes + std::ssize(contents.characters) * 4;
  if (contents.pairs) {
    const BytePairTables& tables = contents.pairs->tables();
    const JoinedTokens joined(tables.tokens);
    bytes += std::ssize(joined.bytes) + std::ssize(joined.ends) * 8 +
             std::ssize(tables.merges) * 8 + std::ssize(tables.special) * 4;
  }
  if (contents.pieces) {
    bytes += std::ssize(contents.pieces->model());
  }
  return bytes;
}

void write_tokenizer(hdf5::File& file, const Tokenizer& tokenizer) {
  const TokenizerContents& contents = tokenizer.contents();
  if (!tokenizer.frame().empty()) {
    file.set_text(names::kDocumentFrame, text_of(tokenizer.frame()));
  }
  if (contents.kind == TokenizerKind::kChars) {
    write_vector(file, names::kCharacters, hdf5::element_type(DType::kUint32),
                 code_points(contents));
  }
  if (contents.pairs) {
    const BytePairTables& tables = contents.pairs->tables();
    const JoinedTokens joined(tables.tokens);
    write_vector(file, names::kTokenBytes, hdf5::element_type(DType::kUint8), joined.bytes);
    write_vector(file, names::kTokenEnds, hdf5::element_type(DType::kInt64), joined.ends);
    file.create_dataset(names::kMerges, hdf5::element_type(DType::kUint32),
                        Shape{std::ssize(tables.merges), 2})
        .write(std::as_bytes(std::span(tables.merges)));
    file.set_int64(names::kSeparator, tables.separator);
    if (contents.kind == TokenizerKind::kBytePairs) {
      file.set_text(names::kSplitPattern, name_of(tables.pattern));
      file.set_text(names::kMergeOrder, name_of(tables.order));
      file.set_int64(names::kWholeWords, tables.whole_words == WholeWords::kYes ? 1 : 0);
      write_vector(file, names::kSpecialTokens, hdf5::element_type(DType::kUint32), tables.special);
    }
  }
  if (contents.pieces) {
    const std::string& model = contents.pieces->model();
    write_vector(file, names::kModel, hdf5::element_type(DType::kUint8),
                 std::vector<std::uint8_t>(model.begin(), model.end()));
  }
}

Tokenizer Tokenizer::of(const DatasetInfo& info) {
  if (info.task != Task::kNextToken || info.tokenizer == TokenizerKind::kNone) {
    fail(ExitCode::kData,
         "{} does not say how its tokens become text; import it anew with --tokenizer=gpt2, "
         "bytes or a tokenizer's file, whichever its tokens were made with",
         info.path.string());
  }
  const hdf5::File file = hdf5::File::open(info.path, ExitCode::kData);
  auto contents = std::make_unique<TokenizerContents>();
  contents->kind = info.tokenizer;
  std::optional<Tokenizer> tokenizer;
  if (info.tokenizer == TokenizerKind::kChars) {
    tokenizer = chars(read_characters(file, info));
  } else {
    if (info.tokenizer == TokenizerKind::kGpt2 || info.tokenizer == TokenizerKind::kBytePairs) {
      contents->pairs.emplace(read_pairs(file, info));
    } else if (info.tokenizer == TokenizerKind::kSentencePiece) {
      const auto model = read_vector<std::uint8_t>(file, names::kModel);
      contents->pieces = std::make_unique<const SentencePieces>(
          std::string(model.begin(), model.end()), "the tokenizer in " + info.path.string());
      contents->pieces_frame = read_frame(file, contents->pieces->vocabulary(), info);
    }
    tokenizer.emplace(std::move(contents));
  }
  if (tokenizer_checksum(*tokenizer) != info.tokenizer_checksum) {
    fail_damaged(info);
  }
  if (tokenizer->vocabulary() != info.classes) {
    fail(ExitCode::kData,
         "{} has a vocabulary of {} and a tokenizer of {} tokens; import anew with the tokenizer "
         "that belongs to the model",
         info.path.string(), info.classes, tokenizer->vocabulary());
  }
  return *std::move(tokenizer);
}

}  // namespace strata::io
