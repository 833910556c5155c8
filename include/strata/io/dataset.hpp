#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/shape.hpp"
#include "strata/io/tokenizer.hpp"

namespace strata::io {

/// Far more classes than any network tells apart: a greater number is a mistake in the data.
inline constexpr std::int64_t kMostClasses = std::int64_t{1} << 24;

/// What a data set's targets are.
enum class Task {
  kClassification,  ///< a class number a sample
  kRegression,      ///< one or more values a sample
  kNextToken        ///< the token after each token of a text
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

/// What a data set's master file says. Tokens have no samples, and no shapes, before
/// Dataset::set_context.
struct DatasetInfo {
  std::filesystem::path path;
  std::string source;
  Task task = Task::kClassification;
  std::int64_t samples = 0;
  Shape input_shape;  ///< of one sample
  DType input_dtype = DType::kUint8;
  Shape target_shape;  ///< of one sample; a scalar for classes, at least one dimension for values
  DType target_dtype = DType::kInt64;
  std::int64_t classes = 0;  ///< 0 for regression; the number of token ids for tokens
  /// Names of the first classes, or none.
  std::vector<std::string> class_names;
  std::int64_t tokens = 0;  ///< 0 where the samples are no tokens
  TokenizerKind tokenizer = TokenizerKind::kNone;
  /// Of the tokenizer's tables.
  std::uint64_t tokenizer_checksum = 0;
  /// Of the train split's inputs as stored, statistics_of(input_shape) of each; none for tokens.
  /// Images of earlier versions have one value.
  std::vector<double> mean;
  std::vector<double> deviation;
  std::vector<ShardInfo> shards;
  /// As the master holds it; equal data sets have equal ones.
  std::uint64_t checksum = 0;

  [[nodiscard]] std::int64_t input_bytes() const {
    return input_shape.count() * size_bytes(input_dtype);
  }
  [[nodiscard]] std::int64_t target_bytes() const {
    return target_shape.count() * size_bytes(target_dtype);
  }
};

/// Whether samples of a shape are images: channels x height x width.
[[nodiscard]] inline bool is_image(const Shape& input_shape) {
  return input_shape.rank() == 3;
}

/// How many means and deviations inputs have: one a feature for vectors, one a channel for images,
/// else one of all elements.
[[nodiscard]] inline std::int64_t statistics_of(const Shape& input_shape) {
  return input_shape.rank() == 1 || is_image(input_shape) ? input_shape[0] : 1;
}

/// XXH3 over everything that a master says of samples and shards, as text; without path and source.
[[nodiscard]] std::uint64_t facts_checksum(const DatasetInfo& info);

/// What a check of a shard's every byte found.
struct ShardCheck {
  std::int64_t bad_samples = 0;  ///< or blocks of tokens
  std::string problem;           ///< empty where the shard is good
};

/// Called with samples or tokens done, and all there are; 0 where that is not known yet.
using SampleProgress = std::function<void(std::int64_t, std::int64_t)>;

/// A data set opened for reading. Its shards are mapped into memory, so that a sample is reached
/// without a copy or a system call; all const members may be called from several threads at once.
class Dataset {
 public:
  /// Opens the data set of a master file and compares each shard with what the master promises.
  /// Throws: Error(kData) where the master or a shard is missing, not ours, or too short.
  [[nodiscard]] static Dataset open(const std::filesystem::path& master);

  ~Dataset();
  Dataset(Dataset&& other) noexcept;
  Dataset& operator=(Dataset&& other) noexcept;

  [[nodiscard]] const DatasetInfo& info() const;

  /// Makes samples of `context` tokens each out of a token stream: sample i reads the tokens
  /// [i * context, (i + 1) * context) and learns [i * context + 1, (i + 1) * context + 1).
  /// info() then has samples, and their shapes. Pre: no other thread uses the data set.
  /// Throws: Error(kData) where the data set holds no tokens, or too few for one sample.
  void set_context(std::int64_t context);

  /// Reads tokens from the one numbered `first` on, and checks the blocks that they lie in.
  /// Pre: the data set holds tokens, and these among them.
  /// Throws: Error(kData) naming the shard and the block that is damaged.
  void read_tokens(std::int64_t first, std::span<std::int64_t> tokens) const;

  /// The stored bytes of a sample, not necessarily aligned. Pre: 0 <= sample < info().samples, and
  /// the data set holds no tokens; so for all that names a sample.
  [[nodiscard]] std::span<const std::byte> sample_input(std::int64_t sample) const;
  [[nodiscard]] std::span<const std::byte> sample_target(std::int64_t sample) const;

  /// Asks the processor to fetch a sample that is read soon. Pre: as sample_input.
  void prefetch(std::int64_t sample) const;

  /// Compares a sample's input, or target, with its checksum.
  /// Throws: Error(kData) naming the shard and the sample.
  void check_input(std::int64_t sample) const;
  void check_target(std::int64_t sample) const;

  /// Reads everything and compares it with all checksums; one entry a shard.
  [[nodiscard]] std::vector<ShardCheck> verify(const SampleProgress& progress = {}) const;

  /// Number of samples of each class; empty for other tasks.
  /// Throws: Error(kData) where a target is no class.
  [[nodiscard]] std::vector<std::int64_t> class_counts() const;

  /// A sample as messages name it: "sample 17 (number 17 of train-00000.h5)".
  [[nodiscard]] std::string sample_text(std::int64_t sample) const;

 private:
  struct Contents;
  explicit Dataset(std::unique_ptr<Contents> contents);

  std::unique_ptr<Contents> contents_;
};

/// Whether an inspection reads every byte.
enum class Inspect { kDescribe, kVerify };

/// A data set's description for people.
struct Inspection {
  std::string text;
  std::int64_t bad_shards = 0;
};

/// Describes a data set: counts, shapes, classes, statistics and shards.
/// Throws: as Dataset::open; a shard whose contents are bad is in the text and in bad_shards.
[[nodiscard]] Inspection inspect_dataset(const std::filesystem::path& master, Inspect inspect,
                                         const SampleProgress& progress = {});

}  // namespace strata::io
