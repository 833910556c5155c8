#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/tokenizer.hpp"

namespace strata::io {

/// Kinds of files that a data set is made from. Each but files of tokens may be gzip-compressed.
enum class ImportFormat {
  kIdx,            ///< a file of images and one of labels
  kCsv,            ///< a header row, then a row a sample
  kNpy,            ///< a NumPy array of inputs and one of targets
  kText,           ///< text, a document a file
  kNanoGptTokens,  ///< nanoGPT's .bin: uint16 tokens and nothing else
  kLlmcTokens,     ///< llm.c's .bin: a header of 1024 bytes, then uint16 or uint32 tokens
  kMegatronTokens  ///< Megatron's .bin with the .idx beside it
};

/// Whether a format holds text or tokens of it.
[[nodiscard]] constexpr bool holds_tokens(ImportFormat format) {
  return format == ImportFormat::kText || format == ImportFormat::kNanoGptTokens ||
         format == ImportFormat::kLlmcTokens || format == ImportFormat::kMegatronTokens;
}

/// Whether the tokenizer's separator is put between documents.
enum class Separator {
  kAuto,  ///< where the tokenizer has one
  kYes,
  kNo
};

/// How targets are taken.
enum class TaskChoice {
  /// Numbers with a fraction are values; integers and texts are classes, and so is everything where
  /// the number of classes is given.
  kAuto,
  kClassification,
  kRegression
};

/// What becomes of a data set that is already in the output directory.
enum class Existing { kRefuse, kReplace };

/// What to import and how. Several files of one kind are taken one after the other.
struct ImportOptions {
  ImportFormat format = ImportFormat::kIdx;
  /// Images, CSV files, .npy inputs, texts or token files.
  std::vector<std::filesystem::path> inputs;
  /// Labels or .npy targets, one for each of `inputs`; none for CSV.
  std::vector<std::filesystem::path> targets;
  /// The CSV column with the labels.
  std::string label;
  TaskChoice task = TaskChoice::kAuto;
  /// Number of classes; 0: one more than the largest label found, or the number of names.
  std::int64_t classes = 0;
  /// How text becomes tokens, or how the tokens of a token file once were made.
  TokenizerKind tokenizer = TokenizerKind::kNone;
  /// GPT-2's encoder.json and vocab.bpe.
  std::filesystem::path encoder;
  std::filesystem::path merges;
  Separator separator = Separator::kAuto;
  /// Number of token ids, for token files without a tokenizer; 0: not given.
  std::int64_t vocabulary = 0;
  /// Samples, or tokens, for train, then for test, in file order: counts as in "8000,2000" or
  /// fractions as in "0.9,0.1". One number makes a train split only.
  std::string split = "0.9,0.1";
  std::filesystem::path output;
  /// Most bytes of inputs in one shard file; a shard holds at least one sample.
  std::int64_t shard_bytes = std::int64_t{1} << 30;
  Existing existing = Existing::kRefuse;
};

/// What was imported; tokens count as samples.
struct ImportReport {
  std::filesystem::path train;
  std::filesystem::path test;  ///< empty where there is no test split
  std::int64_t train_samples = 0;
  std::int64_t test_samples = 0;
  std::int64_t unused_samples = 0;  ///< behind the splits in file order
  std::int64_t classes = 0;
  std::int64_t vocabulary = 0;  ///< 0 where the samples are no tokens
};

/// Makes `output`/train.h5, `output`/test.h5 and their shard files. Everything is written under
/// temporary names and renamed at the end, the masters last; a failure leaves none of it.
/// Throws: Error(kData) for bad input, naming file and place, or a full disk; Error(kUsage) for
/// options that cannot be met.
ImportReport import_dataset(const ImportOptions& options, const SampleProgress& progress = {});

}  // namespace strata::io

namespace strata {
template <>
struct EnumNames<io::ImportFormat> {
  static constexpr std::array<std::pair<io::ImportFormat, std::string_view>, 7> kTable{
      {{io::ImportFormat::kIdx, "idx"},
       {io::ImportFormat::kCsv, "csv"},
       {io::ImportFormat::kNpy, "npy"},
       {io::ImportFormat::kText, "text"},
       {io::ImportFormat::kNanoGptTokens, "tokens-nanogpt"},
       {io::ImportFormat::kLlmcTokens, "tokens-llmc"},
       {io::ImportFormat::kMegatronTokens, "tokens-megatron"}}};
};
template <>
struct EnumNames<io::Separator> {
  static constexpr std::array<std::pair<io::Separator, std::string_view>, 3> kTable{
      {{io::Separator::kAuto, "auto"}, {io::Separator::kYes, "yes"}, {io::Separator::kNo, "no"}}};
};
template <>
struct EnumNames<io::TaskChoice> {
  static constexpr std::array<std::pair<io::TaskChoice, std::string_view>, 3> kTable{
      {{io::TaskChoice::kAuto, "auto"},
       {io::TaskChoice::kClassification, "classification"},
       {io::TaskChoice::kRegression, "regression"}}};
};
}  // namespace strata
