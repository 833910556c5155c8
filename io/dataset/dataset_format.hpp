#pragma once

#include <bit>
#include <cstdint>

/// Names in the files of a data set; docs/formats.md is their description.
namespace strata::io::dataset_format {

static_assert(std::endian::native == std::endian::little,
              "samples are used as they lie in the files, which are little-endian");

inline constexpr const char* kFormat = "format";
inline constexpr const char* kMasterFormat = "strata-dataset";
inline constexpr const char* kShardFormat = "strata-dataset-shard";
inline constexpr const char* kVersion = "version";
inline constexpr std::int64_t kVersionWritten = 1;
inline constexpr const char* kSamples = "samples";
inline constexpr const char* kSource = "source";
inline constexpr const char* kTask = "task";
inline constexpr const char* kClasses = "classes";

inline constexpr const char* kInputs = "inputs";
inline constexpr const char* kTargets = "targets";
/// (samples, 2): the hash of a sample's input and that of its target.
inline constexpr const char* kChecksums = "checksums";
inline constexpr std::int64_t kChecksumsPerSample = 2;
/// The hash over the bytes of a shard's checksums.
inline constexpr const char* kChecksum = "checksum";

inline constexpr const char* kMean = "mean";
inline constexpr const char* kDeviation = "deviation";
inline constexpr const char* kClassNames = "class_names";
inline constexpr const char* kShardFiles = "shards/file";
inline constexpr const char* kShardSamples = "shards/samples";
inline constexpr const char* kShardChecksums = "shards/checksum";

/// Of data sets of tokens.
inline constexpr const char* kTokens = "tokens";
inline constexpr const char* kVocabulary = "vocabulary";
inline constexpr const char* kBlockTokens = "block_tokens";
/// Tokens under one checksum; a shard but the last holds a whole number of blocks.
inline constexpr std::int64_t kBlockTokensWritten = 4096;
inline constexpr const char* kTokenizer = "tokenizer";
inline constexpr const char* kTokenizerChecksum = "tokenizer_checksum";
inline constexpr const char* kSeparator = "separator";
inline constexpr const char* kCharacters = "text/characters";
inline constexpr const char* kTokenBytes = "text/token_bytes";
inline constexpr const char* kTokenEnds = "text/token_ends";
inline constexpr const char* kMerges = "text/merges";

[[nodiscard]] constexpr std::int64_t blocks_of(std::int64_t tokens) {
  return (tokens + kBlockTokensWritten - 1) / kBlockTokensWritten;
}

}  // namespace strata::io::dataset_format
