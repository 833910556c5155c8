#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/shape.hpp"
#include "strata/grid/grid.hpp"
#include "strata/io/documents.hpp"
#include "strata/io/mixture.hpp"
#include "strata/io/tokenizer.hpp"

namespace strata::io {

/// Upper bound on the number of classes: a greater number is a mistake in the data.
inline constexpr std::int64_t kMostClasses = std::int64_t{1} << 24;

/// The kind of a data set's targets.
enum class Task {
  kClassification,  ///< one class index per sample
  kRegression,      ///< one or more values per sample
  kNextToken        ///< for each token of a text, the next token
};

constexpr auto enum_names(Task) {
  return names_in_order("classification", "regression", "next_token");
}

/// One shard file of a data set.
struct ShardInfo {
  std::string file;          ///< relative to the master's directory
  std::int64_t samples = 0;  ///< or tokens
  std::int64_t file_bytes = 0;
  std::uint64_t checksum = 0;
};

/// An input column of the table that a data set was made from.
struct TableColumn {
  std::string name;
  /// Of a column of names: the names, sorted, one input each, which is 1 where the field has that
  /// name and else 0; a missing one is "". Empty for a column of numbers, which is one input.
  std::vector<std::string> categories;
  /// What stands for a missing number; NaN where none may be missing.
  double missing = std::numeric_limits<double>::quiet_NaN();

  [[nodiscard]] std::int64_t inputs() const {
    return categories.empty() ? 1 : std::ssize(categories);
  }
};

/// The contents of a data set's master file. A data set of tokens has samples and shapes only after
/// Dataset::set_context.
struct DatasetInfo {
  std::filesystem::path path;
  std::string source;
  Task task = Task::kClassification;
  std::int64_t samples = 0;
  Shape input_shape;  ///< of one sample
  DType input_dtype = DType::kUint8;
  Shape target_shape;  ///< of one sample; a scalar for classes, rank >= 1 for values
  DType target_dtype = DType::kInt64;
  std::int64_t classes = 0;  ///< 0 for regression; the number of token ids for tokens
  /// Names of the first classes; may be empty.
  std::vector<std::string> class_names;
  /// Of a table: the names of the inputs, then that of the label; else empty. An input of a column
  /// of names is called as in "colour=red".
  std::vector<std::string> column_names;
  /// Of a table: its columns, in the order of the inputs; else, and in sets of earlier versions,
  /// empty.
  std::vector<TableColumn> table;
  std::int64_t tokens = 0;  ///< 0 for other tasks
  /// Of tokens: how many documents are stored with them; 0: where they end is not stored.
  std::int64_t documents = 0;
  /// Of tokens: whether the documents are pairs (Documents::pairs).
  bool pairs = false;
  /// Tokens that count as targets.
  std::int64_t counted_tokens = 0;
  /// XXH3 of Documents, as stored; 0 where none are.
  std::uint64_t documents_checksum = 0;
  /// Inputs of all samples that are not padding, with another packing than blocks; else 0.
  std::int64_t packed_inputs = 0;
  TokenizerKind tokenizer = TokenizerKind::kNone;
  /// XXH3 of the tokenizer's tables.
  std::uint64_t tokenizer_checksum = 0;
  /// The template that dialogues are written with; empty: they have none, or it is not known.
  std::string chat_template;
  /// Statistics of the train split's stored inputs, statistics_of(input_shape) values each; empty
  /// for tokens. Images of earlier versions have one value.
  std::vector<double> mean;
  std::vector<double> deviation;
  /// The same of its targets, target_shape.count() values each; empty but for regression, and for
  /// data sets of earlier versions.
  std::vector<double> target_mean;
  std::vector<double> target_deviation;
  std::vector<ShardInfo> shards;
  /// facts_checksum() as the master stores it; equal for equal data sets.
  std::uint64_t checksum = 0;
  /// Of a mixture: Mixture::text(); else empty.
  std::string mixture;

  [[nodiscard]] std::int64_t input_bytes() const {
    return input_shape.count() * size_bytes(input_dtype);
  }
  [[nodiscard]] std::int64_t target_bytes() const {
    return target_shape.count() * size_bytes(target_dtype);
  }
};

/// Whether samples of this shape are images (channels x height x width).
[[nodiscard]] inline bool is_image(const Shape& input_shape) {
  return input_shape.rank() == 3;
}

/// Number of means and deviations of inputs: one per feature for vectors, one per channel for
/// images, else one.
[[nodiscard]] inline std::int64_t statistics_of(const Shape& input_shape) {
  return input_shape.rank() == 1 || is_image(input_shape) ? input_shape[0] : 1;
}

/// The name of a class, or its number where it has none.
[[nodiscard]] std::string class_text(std::span<const std::string> names, std::int64_t label);

/// XXH3 of everything that a master stores about samples and shards, as text; without path, source,
/// names of columns and statistics of targets.
[[nodiscard]] std::uint64_t facts_checksum(const DatasetInfo& info);

/// Result of verifying one shard.
struct ShardCheck {
  std::int64_t bad_samples = 0;  ///< or blocks of tokens
  std::string problem;           ///< empty for a good shard
};

/// Called with the samples or tokens done and the total; 0 for a total not known yet.
using SampleProgress = std::function<void(std::int64_t, std::int64_t)>;

/// A data set opened for reading. Its shards are mapped into memory, so that access to a sample
/// needs neither a copy nor a system call. Const members are thread-safe.
class Dataset {
 public:
  /// Opens the data set of a master file and checks that each shard matches the master.
  /// Throws: Error(kData) where the master or a shard is missing, too short or of another format.
  [[nodiscard]] static Dataset open(const std::filesystem::path& master);

  /// Opens data sets as one, whose samples are those of the first, then those of the second and so
  /// on. With rules it is a mixture, which a loader mixes in shuffled order. Its path is that of
  /// the first, which also orders columns and classes (match_names()); its statistics are those of
  /// all samples. Throws: as open(); Error(kData) that names two sets which differ in tokenizer,
  /// kind of targets, shapes, stored types, columns or classes; Error(kUsage) for weights that do
  /// not fit.
  [[nodiscard]] static Dataset open_several(const std::vector<MixtureSet>& sets,
                                            const std::optional<MixtureRules>& rules);

  /// A data set of tokens in memory, which is no file. `like`: what is known of it; its tokenizer
  /// and vocabulary are kept, and its path names the data set in messages. Pre: the ids are in the
  /// vocabulary, and the last document ends with the tokens.
  [[nodiscard]] static Dataset of_tokens(std::vector<std::uint32_t> tokens, Documents documents,
                                         DatasetInfo like);

  ~Dataset();
  Dataset(Dataset&& other) noexcept;
  Dataset& operator=(Dataset&& other) noexcept;

  [[nodiscard]] const DatasetInfo& info() const;
  /// What a user should know about a data set that opens; mostly empty.
  [[nodiscard]] std::string warning() const;

  /// Divides a token stream into samples of `context` tokens. In blocks the input of sample i is
  /// the tokens [i * context, (i + 1) * context), its target [i * context + 1, (i + 1) * context +
  /// 1). Sets samples and shapes in info().
  /// Pre: no other thread uses the data set.
  /// Throws: Error(kData) where the data set holds no tokens or too few for one sample, or as
  /// documents().
  void set_context(std::int64_t context, Packing packing = Packing::kBlocks);
  /// The pieces of a sample; of blocks one. Pre: set_context() was called.
  [[nodiscard]] std::vector<Piece> pieces(std::int64_t sample) const;
  /// The inputs of a sample that are not padding. Pre: likewise.
  [[nodiscard]] std::int64_t inputs_of(std::int64_t sample) const;

  /// Sets what a reference model says of each pair (ops::preference_loss()); 0 until then. Pre: one
  /// of each sample; no loader reads.
  void set_references(std::vector<double> references);
  [[nodiscard]] double reference(std::int64_t sample) const;

  /// What open_several() opened; empty for others.
  [[nodiscard]] const std::vector<Dataset>& sets() const;
  /// How the samples of a mixture's sets follow each other; null for other data sets.
  [[nodiscard]] const Mixture* mixture() const;
  /// The samples of a set of a mixture.
  [[nodiscard]] grid::Range samples_of(std::int64_t set) const;

  /// Where documents end and which tokens count: as stored, else after each separator of the
  /// tokenizer, or before where it begins documents. Reads them at the first call. Pre: the data
  /// set holds tokens. Throws: Error(kData) where neither tells.
  [[nodiscard]] const Documents& documents() const;

  /// Numbers the classes and orders the columns as `model` does, by the names of both, from here
  /// on: in info(), label(), ordered_input() and loaders. Where only one has names of classes,
  /// those that are numbers name the other's classes. Does nothing where the names are not known or
  /// the tasks differ. Returns: a line about what changed; mostly empty. Pre: no other thread uses
  /// the data set. Throws: Error(kData) naming a class that has samples, or a column, that only one
  /// of them has. It ends in `advice`.
  std::string match_names(const DatasetInfo& model, std::string_view advice);

  /// Reads tokens [first, first + tokens.size()) and verifies the blocks that hold them.
  /// Pre: the data set holds these tokens.
  /// Throws: Error(kData) naming the shard and the block that is damaged.
  void read_tokens(std::int64_t first, std::span<std::int64_t> tokens) const;

  /// The stored bytes of a sample, verified, not necessarily aligned.
  /// Pre (for all functions with a sample index): 0 <= sample < info().samples; the data set holds
  /// no tokens. Throws: Error(kData) naming the shard and the sample that is damaged.
  [[nodiscard]] std::span<const std::byte> sample_input(std::int64_t sample) const;
  [[nodiscard]] std::span<const std::byte> sample_target(std::int64_t sample) const;

  /// The stored input, with its columns in the order of info(); `buffer` may hold it.
  [[nodiscard]] std::span<const std::byte> ordered_input(std::int64_t sample,
                                                         std::vector<std::byte>& buffer) const;
  /// The class of a sample. Throws: Error(kData) where it is out of range.
  [[nodiscard]] std::int64_t label(std::int64_t sample) const;

  /// Prefetches a sample into the CPU caches.
  void prefetch(std::int64_t sample) const;

  /// Reads all shards and compares all checksums; one entry per shard.
  [[nodiscard]] std::vector<ShardCheck> verify(const SampleProgress& progress = {}) const;

  /// Number of samples of each class; empty for other tasks.
  /// Throws: Error(kData) where a target is damaged or not a class index.
  [[nodiscard]] std::vector<std::int64_t> class_counts() const;

  /// Names a sample in messages, as in "sample 17 (number 17 of train-00000.h5)".
  [[nodiscard]] std::string sample_text(std::int64_t sample) const;

 private:
  struct Contents;
  explicit Dataset(std::unique_ptr<Contents> contents);

  std::unique_ptr<Contents> contents_;
};

/// Whether an inspection reads every byte.
enum class Inspect { kDescribe, kVerify };

/// A printable description of a data set.
struct Inspection {
  std::string text;
  std::int64_t bad_shards = 0;
  std::string warning;  ///< of Dataset::warning
};

/// The text of a document, counted from 0; what counts stands between ⟦ and ⟧ where not all does.
/// Throws: Error(kUsage) where there is none of that number; as Dataset::documents() and
/// Tokenizer::of().
[[nodiscard]] std::string document_text(const Dataset& dataset, std::int64_t number);

/// Describes a data set: counts, shapes, classes, statistics and shards. A shard with damaged
/// contents is reported in the text and counted in bad_shards.
/// Throws: as Dataset::open.
[[nodiscard]] Inspection inspect_dataset(const std::filesystem::path& master, Inspect inspect,
                                         const SampleProgress& progress = {});

}  // namespace strata::io
