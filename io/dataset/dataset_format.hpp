#pragma once

#include <bit>
#include <cstdint>

/// Names in the files of a data set. Format: docs/formats.md.
namespace strata::io::dataset_format {

static_assert(std::endian::native == std::endian::little,
              "samples are read without conversion from little-endian files");

inline constexpr const char* kMasterFormat = "strata-dataset";
inline constexpr const char* kShardFormat = "strata-dataset-shard";
inline constexpr std::int64_t kVersionWritten = 1;
inline constexpr const char* kSamples = "samples";
inline constexpr const char* kSource = "source";
inline constexpr const char* kTask = "task";
inline constexpr const char* kClasses = "classes";

inline constexpr const char* kInputs = "inputs";
inline constexpr const char* kTargets = "targets";
/// Shape (samples, 2): hashes of a sample's input and target.
inline constexpr const char* kChecksums = "checksums";
inline constexpr std::int64_t kChecksumsPerSample = 2;
/// Hash of a shard's list of checksums.
inline constexpr const char* kChecksum = "checksum";

inline constexpr const char* kMean = "mean";
inline constexpr const char* kDeviation = "deviation";
inline constexpr const char* kTargetMean = "target_mean";
inline constexpr const char* kTargetDeviation = "target_deviation";
inline constexpr const char* kClassNames = "class_names";
/// Of a table: those of the inputs, then that of the label.
inline constexpr const char* kColumnNames = "column_names";
/// Of each column of a table: its name, the number of its categories (0: it holds numbers) and what
/// stands for a missing number; and the categories of all columns.
inline constexpr const char* kTableColumns = "table/columns";
inline constexpr const char* kTableCounts = "table/category_counts";
inline constexpr const char* kTableMissing = "table/missing";
inline constexpr const char* kTableCategories = "table/categories";
inline constexpr const char* kShardFiles = "shards/file";
inline constexpr const char* kShardSamples = "shards/samples";
inline constexpr const char* kShardChecksums = "shards/checksum";

/// Data sets of tokens.
inline constexpr const char* kTokens = "tokens";
inline constexpr const char* kVocabulary = "vocabulary";
inline constexpr const char* kBlockTokens = "block_tokens";
/// Tokens per checksum. Each shard but the last holds a whole number of blocks.
inline constexpr std::int64_t kBlockTokensWritten = 4096;
/// Documents: the ends, and begin and end of each run of tokens that count; missing with one
/// document, or where all count.
inline constexpr const char* kDocuments = "documents";
inline constexpr const char* kCounted = "counted";
inline constexpr const char* kDocumentsChecksum = "documents_checksum";
inline constexpr const char* kCountedTokens = "counted_tokens";
/// 1 where documents are pairs; else missing.
inline constexpr const char* kPairs = "pairs";
/// Of dialogues with a built-in template: its name; else missing.
inline constexpr const char* kChatTemplate = "chat_template";
inline constexpr const char* kTokenizer = "tokenizer";
inline constexpr const char* kTokenizerChecksum = "tokenizer_checksum";
inline constexpr const char* kSeparator = "separator";
inline constexpr const char* kCharacters = "text/characters";
inline constexpr const char* kTokenBytes = "text/token_bytes";
inline constexpr const char* kTokenEnds = "text/token_ends";
inline constexpr const char* kMerges = "text/merges";
/// Of tokens of characters: CharacterRules::text; and the scores of a unigram model.
inline constexpr const char* kRules = "text/rules";
inline constexpr const char* kScores = "text/scores";
/// Only for byte pairs from a tokenizer.json or a file of ranks.
inline constexpr const char* kSplitPattern = "split_pattern";
inline constexpr const char* kMergeOrder = "merge_order";
inline constexpr const char* kWholeWords = "whole_words";
inline constexpr const char* kNormalizer = "normalizer";
inline constexpr const char* kSpecialTokens = "text/special_tokens";
/// Added tokens with their flags, as JSON; missing where all are special and have no other flag.
inline constexpr const char* kAddedTokens = "text/added_tokens";
/// Ids around a document, as in "128000 $A"; missing where there are none.
inline constexpr const char* kDocumentFrame = "document_frame";
/// The bytes of SentencePiece's model.
inline constexpr const char* kModel = "text/model";

[[nodiscard]] constexpr std::int64_t blocks_of(std::int64_t tokens) {
  return (tokens + kBlockTokensWritten - 1) / kBlockTokensWritten;
}

}  // namespace strata::io::dataset_format
