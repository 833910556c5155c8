#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/tokenizer.hpp"

namespace strata::io {

/// Kinds of files that a data set is made from. Arrays, CSV files and texts may be gzip-compressed.
enum class ImportFormat {
  kIdx,            ///< a file of images and one of labels
  kCsv,            ///< a header row, then a row a sample
  kNpy,            ///< a NumPy array of inputs and one of targets
  kCifar10,        ///< the binary version of CIFAR-10
  kCifar100,       ///< the binary version of CIFAR-100, with its fine labels
  kImages,         ///< a folder a class with JPEG and PNG files
  kText,           ///< text, a document a file
  kNanoGptTokens,  ///< nanoGPT's .bin: uint16 tokens and nothing else
  kLlmcTokens,     ///< llm.c's .bin: a header of 1024 bytes, then uint16 or uint32 tokens
  kMegatronTokens  ///< Megatron's .bin with the .idx beside it
};

constexpr auto enum_names(ImportFormat) {
  return names_in_order("idx", "csv", "npy", "cifar10", "cifar100", "images", "text",
                        "tokens-nanogpt", "tokens-llmc", "tokens-megatron");
}

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

constexpr auto enum_names(Separator) {
  return names_in_order("auto", "on", "off");
}

/// How targets are taken.
enum class TaskChoice {
  /// Numbers with a fraction are values; integers and texts are classes, and so is everything where
  /// the number of classes is given.
  kAuto,
  kClassification,
  kRegression
};

constexpr auto enum_names(TaskChoice) {
  return names_in_order("auto", "classification", "regression");
}

/// What becomes of a data set that is already in the output directory.
enum class Existing { kRefuse, kReplace };

/// Whether the format itself says which classes there are.
[[nodiscard]] constexpr bool holds_classes(ImportFormat format) {
  return format == ImportFormat::kCifar10 || format == ImportFormat::kCifar100 ||
         format == ImportFormat::kImages;
}

/// What becomes of an import in which files are no images, or images of another size.
enum class BadFiles {
  kFail,  ///< it fails when all of them are known
  kSkip   ///< they are found in a pass of its own, and left out
};

/// What is made of images in folders, in this order; 0 leaves a step out.
struct ImageOptions {
  std::int64_t shorter_side = 0;  ///< resized to, in pixels; or to height and width
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t crop = 0;      ///< side of the square that is cut out of the centre
  std::int64_t channels = 3;  ///< 3 (red, green, blue) or 1 (luma)
  BadFiles bad_files = BadFiles::kFail;
  std::int64_t threads = 1;  ///< that decode; what they make does not depend on their number
};

/// What to import and how. Several files of one kind are taken one after the other.
struct ImportOptions {
  ImportFormat format = ImportFormat::kIdx;
  /// Images, CSV files, .npy inputs, texts or token files; directories of a folder a class.
  std::vector<std::filesystem::path> inputs;
  /// Labels or .npy targets, one for each of `inputs`; none for other formats.
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
  ImageOptions images;
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
  /// Files that were left out, each with the reason.
  std::vector<std::string> skipped;
};

/// Makes `output`/train.h5, `output`/test.h5 and their shard files. Everything is written under
/// temporary names and renamed at the end, the masters last; a failure leaves none of it.
/// `checking` is told of the pass that looks for bad files, where there is one.
/// Throws: Error(kData) for bad input, naming file and place, or a full disk; Error(kUsage) for
/// options that cannot be met.
ImportReport import_dataset(const ImportOptions& options, const SampleProgress& progress = {},
                            const SampleProgress& checking = {});

}  // namespace strata::io
