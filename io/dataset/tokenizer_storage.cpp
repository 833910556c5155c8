#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "strata/core/hash.hpp"
#include "strata/core/text.hpp"
#include "strata/core/utf8.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/json.hpp"

#include "dataset/dataset_format.hpp"
#include "dataset/dataset_read.hpp"
#include "tokenizer/character_rules.hpp"
#include "tokenizer/tokenizer_contents.hpp"
#include "tokenizer/tokenizer_json.hpp"

namespace strata::io {
namespace {

namespace names = dataset_format;

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

/// Whether every byte is a token, unless tokens are of characters, and so are the operands and the
/// result of each merge.
bool is_complete(const BytePairTables& tables, TokenizerKind kind) {
  const std::unordered_set<std::string_view> tokens(tables.tokens.begin(), tables.tokens.end());
  const bool of_bytes = kind == TokenizerKind::kGpt2 || kind == TokenizerKind::kBytePairs;
  const bool has_scores = !tables.scores.empty() && tables.scores.size() <= tables.tokens.size();
  if (has_scores != (kind == TokenizerKind::kUnigram) ||
      !std::ranges::all_of(tables.scores, [](double score) { return std::isfinite(score); })) {
    return false;
  }
  if (!of_bytes && !std::ranges::all_of(tables.tokens, [](const std::string& token) {
        return utf8_prefix(token).rest == Utf8Prefix::Rest::kNothing;
      })) {
    return false;
  }
  for (int value = 0; value < (of_bytes ? 256 : 0); ++value) {
    const char byte = static_cast<char>(value);
    if (!tokens.contains({&byte, 1})) {
      return false;
    }
  }
  const auto count = static_cast<std::int64_t>(tables.tokens.size());
  return tables.separator >= -1 && tables.separator < count &&
         std::ranges::is_sorted(tables.added, std::ranges::less_equal(), &AddedToken::id) &&
         std::ranges::all_of(tables.added,
                             [&](const AddedToken& token) {
                               return token.id < count && tables.tokens[token.id] == token.text;
                             }) &&
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

/// The list that write_tokenizer() stores; nothing where there is none.
std::optional<std::vector<AddedToken>> read_added(const hdf5::File& file, const DatasetInfo& info) {
  if (!file.has(names::kAddedTokens)) {
    return std::nullopt;
  }
  const auto bytes = read_vector<std::uint8_t>(file, names::kAddedTokens);
  const auto list = parse_json(std::string(bytes.begin(), bytes.end()));
  if (!list) {
    fail_damaged(info);
  }
  return added_tokens_of(*list, "the tokenizer in " + info.path.string());
}

/// Added tokens as they are stored; empty where their ids and texts say all.
std::string stored_added(const TokenizerContents& contents) {
  const std::vector<AddedToken>& tokens = contents.added();
  const bool plain = contents.pairs && !contents.pairs->tables().characters &&
                     std::ranges::all_of(tokens, [](const AddedToken& token) {
                       return token == AddedToken{token.id, token.text};
                     });
  return plain || tokens.empty() ? "" : added_tokens_json(tokens).dump();
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
  std::vector<std::uint32_t> special;
  if (info.tokenizer == TokenizerKind::kBytePairs) {
    tables.splits =
        splits_of(file.text(names::kSplitPattern), "the tokenizer in " + info.path.string());
    tables.normalizer =
        file.has_attribute(names::kNormalizer) ? Normalizer::kNfc : Normalizer::kNone;
    tables.order = read_enum<MergeOrder>(file, names::kMergeOrder, info);
    tables.whole_words = file.int64(names::kWholeWords) != 0 ? WholeWords::kYes : WholeWords::kNo;
    special = read_vector<std::uint32_t>(file, names::kSpecialTokens);
    tables.frame = read_frame(file, std::ssize(ends), info);
  } else if (info.tokenizer != TokenizerKind::kGpt2) {
    if (file.has(names::kScores)) {
      tables.scores = read_vector<double>(file, names::kScores);
    }
    tables.frame = read_frame(file, std::ssize(ends), info);
  } else if (tables.separator >= 0) {
    special = {static_cast<std::uint32_t>(tables.separator)};
  }
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    if (end < begin || end > std::ssize(bytes)) {
      fail_damaged(info);
    }
    tables.tokens.emplace_back(bytes.begin() + begin, bytes.begin() + end);
    begin = end;
  }
  const std::optional<std::vector<AddedToken>> added = read_added(file, info);
  for (const std::uint32_t id : special) {
    if (id >= tables.tokens.size()) {
      fail_damaged(info);
    }
    tables.added.push_back({id, tables.tokens[id]});
  }
  tables.added = added.value_or(tables.added);
  if (merges.shape().rank() != 2 || merges.shape()[1] != 2 || merges.dtype() != DType::kUint32) {
    fail_damaged(info);
  }
  tables.merges.resize(static_cast<std::size_t>(merges.shape()[0]));
  merges.read(std::as_writable_bytes(std::span(tables.merges)));
  if (!is_complete(tables, info.tokenizer)) {
    fail_damaged(info);
  }
  if (info.tokenizer > TokenizerKind::kSentencePiece) {
    const auto text = read_vector<std::uint8_t>(file, names::kRules);
    const auto rules = parse_json(std::string(text.begin(), text.end()));
    if (!rules) {
      fail_damaged(info);
    }
    set_rules(*rules, "the tokenizer in " + info.path.string(), tables);
  }
  return tables;
}

/// The ids of added tokens.
std::vector<std::uint32_t> ids_of(const std::vector<AddedToken>& tokens) {
  std::vector<std::uint32_t> ids;
  ids.reserve(tokens.size());
  for (const AddedToken& token : tokens) {
    ids.push_back(token.id);
  }
  return ids;
}

/// The added tokens that change the ids of a text, or its vocabulary, beyond the tables.
std::string added_text(const TokenizerContents& contents) {
  std::vector<AddedToken> tokens = contents.added();
  const bool normalizes =
      contents.pairs && (contents.pairs->tables().normalizer != Normalizer::kNone ||
                         contents.pairs->tables().characters);
  std::erase_if(tokens, [&](const AddedToken& token) {
    return token.is_plain() && (contents.pairs || token.id < contents.pieces->vocabulary());
  });
  for (AddedToken& token : tokens) {
    token.normalized = token.normalized && normalizes;
  }
  return tokens.empty() ? "" : added_tokens_json(tokens).dump();
}

/// How the tables are used.
std::string rules_text(const BytePairTables& tables) {
  if (tables.characters) {
    return tables.characters->text;
  }
  return fmt::format("{} {} {}{}", text_of(tables.splits), name_of(tables.order),
                     tables.whole_words == WholeWords::kYes ? 1 : 0,
                     tables.normalizer == Normalizer::kNfc ? " nfc" : "");
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
    if (contents.kind != TokenizerKind::kGpt2) {
      const std::string rules = rules_text(tables);
      hash.update(std::as_bytes(std::span(rules)));
      hash.update(std::as_bytes(std::span(tables.scores)));
      const std::vector<std::uint32_t> ids = ids_of(tables.added);
      hash.update(std::as_bytes(std::span(ids)));
    }
  }
  if (contents.pieces) {
    hash.update(std::as_bytes(std::span(contents.pieces->model())));
  }
  const std::string added = added_text(contents);
  hash.update(std::as_bytes(std::span(added)));
  return hash.digest();
}

std::int64_t stored_bytes(const Tokenizer& tokenizer) {
  constexpr std::int64_t kTableOverheadBytes = 4 * 1024;
  const TokenizerContents& contents = tokenizer.contents();
  std::int64_t bytes = kTableOverheadBytes + std::ssize(contents.characters) * 4 +
                       std::ssize(stored_added(contents));
  if (contents.pairs) {
    const BytePairTables& tables = contents.pairs->tables();
    const JoinedTokens joined(tables.tokens);
    bytes +=
        std::ssize(joined.bytes) + std::ssize(joined.ends) * 8 + std::ssize(tables.merges) * 8 +
        std::ssize(tables.added) * 4 +
        (tables.characters ? std::ssize(tables.characters->text) + std::ssize(tables.scores) * 8
                           : std::ssize(text_of(tables.splits)));
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
    file.write_vector(names::kCharacters, std::vector<std::uint32_t>(contents.characters.begin(),
                                                                     contents.characters.end()));
  }
  if (contents.pairs) {
    const BytePairTables& tables = contents.pairs->tables();
    const JoinedTokens joined(tables.tokens);
    file.write_vector(names::kTokenBytes, joined.bytes);
    file.write_vector(names::kTokenEnds, joined.ends);
    file.create_dataset(names::kMerges, hdf5::element_type(DType::kUint32),
                        Shape{std::ssize(tables.merges), 2})
        .write(std::as_bytes(std::span(tables.merges)));
    file.set_int64(names::kSeparator, tables.separator);
    if (tables.characters) {
      const std::string& rules = tables.characters->text;
      file.write_vector(names::kRules, std::vector<std::uint8_t>(rules.begin(), rules.end()));
    }
    if (!tables.scores.empty()) {
      file.write_vector(names::kScores, tables.scores);
    }
    if (contents.kind == TokenizerKind::kBytePairs) {
      file.set_text(names::kSplitPattern, text_of(tables.splits));
      if (tables.normalizer == Normalizer::kNfc) {
        file.set_text(names::kNormalizer, "nfc");
      }
      file.set_text(names::kMergeOrder, name_of(tables.order));
      file.set_int64(names::kWholeWords, tables.whole_words == WholeWords::kYes ? 1 : 0);
      file.write_vector(names::kSpecialTokens, ids_of(tables.added));
    }
  }
  if (const std::string added = stored_added(contents); !added.empty()) {
    file.write_vector(names::kAddedTokens, std::vector<std::uint8_t>(added.begin(), added.end()));
  }
  if (contents.pieces) {
    const std::string& model = contents.pieces->model();
    file.write_vector(names::kModel, std::vector<std::uint8_t>(model.begin(), model.end()));
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
    if (info.tokenizer != TokenizerKind::kBytes &&
        info.tokenizer != TokenizerKind::kSentencePiece) {
      contents->pairs.emplace(read_pairs(file, info));
    } else if (info.tokenizer == TokenizerKind::kSentencePiece) {
      const auto model = read_vector<std::uint8_t>(file, names::kModel);
      contents->pieces = std::make_unique<const SentencePieces>(
          std::string(model.begin(), model.end()), "the tokenizer in " + info.path.string());
      contents->pieces_added = read_added(file, info).value_or(std::vector<AddedToken>());
      contents->pieces_frame = read_frame(file, contents->pieces_ids(), info);
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
