#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/tokenizer.hpp"

namespace strata::io {

/// Source formats of a data set. Arrays, tables and texts may be compressed with gzip or zstd.
enum class ImportFormat {
  kIdx,            ///< a file of images and one of labels
  kCsv,            ///< a header row, then one row per sample
  kJsonLines,      ///< one object per line, a sample each
  kNpy,            ///< a NumPy array of inputs and one of targets
  kCifar10,        ///< the binary version of CIFAR-10
  kCifar100,       ///< the binary version of CIFAR-100, with its fine labels
  kImages,         ///< one folder per class with JPEG and PNG files
  kText,           ///< text, one document per file
  kChat,           ///< an object per line, a dialogue each
  kPreferences,    ///< an object per line, a preferred and a rejected answer each
  kNanoGptTokens,  ///< nanoGPT's .bin: tokens of 16 bits, or token_bits, and nothing else
  kLlmcTokens,     ///< llm.c's .bin: a header of 1024 bytes, then uint16 or uint32 tokens
  kMegatronTokens  ///< Megatron's .bin with the .idx beside it
};
constexpr auto enum_names(ImportFormat) {
  return names_in_order("idx", "csv", "jsonl", "npy", "cifar10", "cifar100", "images", "text",
                        "chat", "preferences", "tokens-nanogpt", "tokens-llmc", "tokens-megatron");
}

/// Whether a format holds dialogues.
[[nodiscard]] constexpr bool holds_chats(ImportFormat format) {
  return format == ImportFormat::kChat || format == ImportFormat::kPreferences;
}

/// Whether a format holds text or tokens.
[[nodiscard]] constexpr bool holds_tokens(ImportFormat format) {
  return format == ImportFormat::kText || holds_chats(format) ||
         format == ImportFormat::kNanoGptTokens || format == ImportFormat::kLlmcTokens ||
         format == ImportFormat::kMegatronTokens;
}

/// Whether the tokenizer's separator is inserted between documents.
enum class Separator {
  kAuto,  ///< where the tokenizer has one
  kYes,
  kNo
};
constexpr auto enum_names(Separator) {
  return names_in_order("auto", "on", "off");
}

/// How targets are interpreted.
enum class TaskChoice {
  /// Floating-point numbers are values and texts are classes. Whole numbers are classes where there
  /// are few of them for the number of samples. Where the number of classes is given, all are.
  kAuto,
  kClasses,
  kValues
};

constexpr auto enum_names(TaskChoice) {
  return names_in_order("auto", "classes", "values");
}

/// The order in which samples become those of the splits.
enum class ImportOrder {
  kShuffled,  ///< a random permutation, with each class spread evenly over the splits
  kFile
};
constexpr auto enum_names(ImportOrder) {
  return names_in_order("shuffled", "file");
}

/// What to do with missing fields of a table.
enum class Missing {
  kRefuse,
  kMean,    ///< the mean of the column's numbers; among names, a name of its own
  kMedian,  ///< the median likewise
  kDrop     ///< leaves the sample out
};
constexpr auto enum_names(Missing) {
  return names_in_order("refuse", "mean", "median", "drop");
}

/// The columns of a table.
struct TableOptions {
  std::string label;  ///< the column of the targets
  /// The input columns; empty: all but the label and `ignore`.
  std::vector<std::string> columns;
  std::vector<std::string> ignore;
  /// Columns whose fields are names, whatever they hold.
  std::vector<std::string> categories;
  Missing missing = Missing::kRefuse;
  /// The column whose fields name the samples for a model; empty: one called id.
  std::string id;
};

/// What to do with a data set that is already in the output directory.
enum class Existing { kRefuse, kReplace };

/// What to do with files that are not images or are images of another size.
enum class BadFiles {
  kFail,  ///< fails the import once all of them are known
  kSkip   ///< finds them in a first pass and skips them
};

/// Preprocessing of images, in this order; 0 skips a step.
struct ImageOptions {
  std::int64_t shorter_side = 0;  ///< resize to this many pixels; or to height and width
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t crop = 0;      ///< side of the centre crop in pixels
  std::int64_t channels = 3;  ///< 3 (red, green, blue) or 1 (luma)
  BadFiles bad_files = BadFiles::kFail;
  std::int64_t threads = 1;  ///< decoder threads; the result does not depend on their number
};

/// In place of a template: dialogues are rendered already.
inline constexpr std::string_view kRenderedChats = "rendered";

/// What becomes of documents whose text an earlier one has.
enum class Repeated { kImported, kLeftOut };

/// What becomes of a dialogue of too many tokens.
enum class TooLong {
  kCut,      ///< ends after the last learned message that is within the bound
  kLeftOut,  ///< is not imported
  kRefused   ///< ends the import
};
constexpr auto enum_names(TooLong) {
  return names_in_order("cut", "leave-out", "refuse");
}

/// Which documents of a text or of dialogues are imported.
struct DocumentRules {
  Repeated repeated = Repeated::kImported;
  /// Bounds of a document's length.
  std::int64_t min_characters = 0;
  std::int64_t max_characters = std::numeric_limits<std::int64_t>::max();
  /// The share of all texts whose hash puts a document into the test split, so that each keeps its
  /// split when files are added; 0: `split` makes it.
  double held_out = 0.0;
  /// The most tokens of a dialogue.
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();
  TooLong too_long = TooLong::kCut;

  friend bool operator==(const DocumentRules&, const DocumentRules&) = default;
};

/// What to import and how. Several files of one kind are concatenated.
struct ImportOptions {
  ImportFormat format = ImportFormat::kIdx;
  /// Images, CSV files, .npy inputs, texts or token files; directories with one folder per class.
  std::vector<std::filesystem::path> inputs;
  /// The data of a model that is to predict: the samples are like its inputs and have no targets,
  /// stored as 0. Null: they have. It outlives the import.
  const DatasetInfo* model = nullptr;
  /// Labels or .npy targets, one for each of `inputs`; empty for other formats.
  std::vector<std::filesystem::path> targets;
  /// Files like `inputs` and `targets`, of which the test split is made; empty: `split` says which
  /// samples it gets.
  std::vector<std::filesystem::path> test_inputs;
  std::vector<std::filesystem::path> test_targets;
  TableOptions table;
  TaskChoice task = TaskChoice::kAuto;
  /// Number of classes; 0: the largest label plus one, or the number of names.
  std::int64_t classes = 0;
  /// The tokenizer for text, or the one that made the tokens of a token file.
  TokenizerKind tokenizer = TokenizerKind::kNone;
  /// GPT-2's encoder.json and vocab.bpe.
  std::filesystem::path encoder;
  std::filesystem::path merges;
  /// A file for Tokenizer::from_file(), instead of `tokenizer`; and the pattern for it.
  std::filesystem::path tokenizer_file;
  std::string split_pattern;
  Separator separator = Separator::kAuto;
  /// How the texts of special tokens within a text are encoded.
  Markers markers = Markers::kAsText;
  /// Of a text: the files hold an object per line, a document each, whose text is in this field;
  /// empty: a file is one document.
  std::string text_field;
  /// Of dialogues: a built-in template, or kRenderedChats; empty: the one of the model whose
  /// directory has `tokenizer_file` (published_template()). And the roles whose messages are
  /// learned.
  std::string chat_template;
  std::vector<std::string> roles{"assistant"};
  /// Threads that read lines of text and dialogues; the result does not depend on their number.
  std::int64_t threads = 1;
  DocumentRules documents;
  ImageOptions images;
  /// Number of token ids, for token files without a tokenizer; 0: not given.
  std::int64_t vocabulary = 0;
  /// Width of the ids in nanoGPT's files, which do not say it: 16, 32 or 64; 0: not given, 16.
  std::int64_t token_bits = 0;
  /// Samples, or tokens, for train, then for test: counts as in "8000,2000", or fractions as in
  /// "0.9,0.1" or "90%,10%". One number makes a train split only. Empty: "0.9,0.1", or the test
  /// files.
  std::string split;
  /// Of samples; not given: shuffled, unless `split` cuts between two files.
  std::optional<ImportOrder> order;
  std::uint64_t seed = 1;  ///< of the permutation
  std::filesystem::path output;
  /// Upper bound on the input bytes of one shard file; a shard holds at least one sample.
  std::int64_t shard_bytes = std::int64_t{1} << 30;
  Existing existing = Existing::kRefuse;
};

/// The ranks that import together.
struct ImportRanks {
  using Step = std::function<std::string()>;

  std::int64_t rank = 0;
  std::int64_t count = 1;
  /// Runs a step on every rank; returns what the steps return, in rank order. Where one throws, all
  /// ranks throw.
  std::function<std::vector<std::string>(const Step&)> gather = [](const Step& step) {
    return std::vector<std::string>{step()};
  };

  /// Runs a step on rank 0 alone; returns what it returns.
  [[nodiscard]] std::string on_first(const Step& step) const {
    return gather([&] { return rank == 0 ? step() : std::string(); }).front();
  }
};

/// Result of an import; tokens count as samples.
struct ImportReport {
  std::filesystem::path train;
  std::filesystem::path test;  ///< empty without a test split
  std::int64_t train_samples = 0;
  std::int64_t test_samples = 0;
  std::int64_t unused_samples = 0;  ///< in neither split
  std::int64_t classes = 0;
  std::int64_t vocabulary = 0;  ///< 0 for other tasks
  /// Skipped files, each with the reason.
  std::vector<std::string> skipped;
  /// What a user should know about how the files were understood, a sentence each.
  std::vector<std::string> notes;
  /// Names of samples for a model: fields of a column, or files; empty where they have none.
  std::vector<std::string> ids;
};

/// Creates `output`/train.h5, `output`/test.h5 and their shard files. All files are written under
/// temporary names and renamed at the end, the masters last; a failed import leaves no files. One
/// of text or dialogues that was killed leaves the pieces that it has read, with which the same
/// import goes on. `checking` reports the progress of the pass that finds bad files, where there is
/// one. `ranks`: several share the work for text and dialogues; the data set does not depend on
/// them. Returns: on rank 0, what was imported. Communication: collective over the ranks. Throws:
/// Error(kData) for bad input, with file and position, or a full disk; Error(kUsage) for invalid
/// options.
ImportReport import_dataset(const ImportOptions& options, const SampleProgress& progress = {},
                            const SampleProgress& checking = {}, const ImportRanks& ranks = {});

}  // namespace strata::io
