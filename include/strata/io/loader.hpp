#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/switch.hpp"
#include "strata/core/tensor.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/sample_order.hpp"

namespace strata::io {

/// Parts of samples that a loader reads: the first stage needs inputs, the last one targets, and
/// stages with layers that tell documents apart need what places say.
enum class Parts : unsigned {
  kNone = 0,
  kInputs = 1,
  kTargets = 2,
  kBoth = 3,
  kDocumentStarts = 4,  ///< of tokens
  kPositions = 8,       ///< of tokens
  kReferences = 16      ///< of pairs of documents
};

[[nodiscard]] constexpr Parts operator|(Parts left, Parts right) {
  return static_cast<Parts>(static_cast<unsigned>(left) | static_cast<unsigned>(right));
}

/// Whether `parts` includes all of `part`.
[[nodiscard]] constexpr bool contains(Parts parts, Parts part) {
  return (static_cast<unsigned>(parts) & static_cast<unsigned>(part)) ==
         static_cast<unsigned>(part);
}

/// Normalisation of inputs.
enum class Normalise {
  kAuto,     ///< kUnit for bytes, kStandard for columns of a table, kNone for others
  kNone,     ///< x
  kUnit,     ///< x / 255
  kStandard  ///< (x - mean) / deviation of the train split; a deviation of 0 counts as 1
};

constexpr auto enum_names(Normalise) {
  return names_in_order("auto", "none", "unit", "standard");
}

/// Resolves kAuto for the inputs of a data set.
[[nodiscard]] Normalise resolved(Normalise normalise, const DatasetInfo& info);

/// Units of the values that a model learns.
enum class TargetUnits {
  kAuto,     ///< kStandard where the data set has statistics of its targets
  kNone,     ///< as stored
  kStandard  ///< (t - mean) / deviation of the train split; a deviation of 0 counts as 1
};

constexpr auto enum_names(TargetUnits) {
  return names_in_order("auto", "none", "standard");
}

/// Random augmentation of training images: crop, then flip, then cutout. Padding zeros are zeros of
/// the normalised input. A sample's position in the stream is the counter of its random numbers.
struct Augmentation {
  Switch flip = Switch::kOff;  ///< mirrors half of the images, left to right
  /// Width of the zero padding from which a crop of the image's size is taken.
  std::int64_t crop_padding = 0;
  /// Side of a square of zeros, centred anywhere in the image and clipped at its border.
  std::int64_t cutout = 0;

  friend bool operator==(const Augmentation&, const Augmentation&) = default;
};

/// What a loader reads for one rank.
struct LoaderOptions {
  Order order = Order::kShuffled;
  /// How tokens are sampled in shuffled order; sequential order always reads blocks.
  Sampling sampling = Sampling::kBlocks;
  std::uint64_t seed = 0;
  /// Samples of one step over all ranks.
  std::int64_t global_batch = 1;
  /// Samples in a microbatch.
  std::int64_t microbatch = 1;
  /// First sample of each of this rank's microbatches within the global batch, in execution order.
  std::vector<std::int64_t> offsets{0};
  /// The first step to load; 0 is the first of the run.
  std::int64_t first_step = 0;
  /// Number of steps to load.
  std::int64_t steps = 1;
  /// Floating-point type of inputs and of regression targets.
  DType compute_dtype = DType::kFloat32;
  Parts parts = Parts::kBoth;
  /// Of tokens in blocks: a target that begins another document does not count.
  Switch separate_documents = Switch::kOff;
  Normalise normalise = Normalise::kAuto;
  /// Statistics for Normalise::kStandard; empty: the data set's.
  std::vector<double> mean;
  std::vector<double> deviation;
  /// Of the values that are targets; empty: they stay as stored.
  std::vector<double> target_mean;
  std::vector<double> target_deviation;
  Augmentation augmentation;
  /// Reader threads; the samples do not depend on their number.
  std::int64_t reader_threads = 1;
};

/// One rank's samples of one step, in host memory, each microbatch aligned to 64 bytes.
class LoadedStep {
 public:
  /// Counted from 0.
  [[nodiscard]] std::int64_t step() const { return step_; }
  /// Shapes: (microbatch, channels_last(input shape)...); int64 for tokens, else the compute dtype.
  /// Pre: the loader reads inputs.
  [[nodiscard]] ConstTensorView inputs(std::int64_t microbatch) const;
  /// Shapes: (microbatch, target shape...); int64 for classes and tokens, -1 for a token that
  /// counts nowhere; the compute dtype for values.
  /// Pre: the loader reads targets.
  [[nodiscard]] ConstTensorView targets(std::int64_t microbatch) const;
  /// The index within the sample of the first token of each token's document. Padding is documents
  /// of one token. Shapes: (microbatch, context), uint32. Pre: the loader reads them.
  [[nodiscard]] ConstTensorView document_starts(std::int64_t microbatch) const;
  /// The position of each token in its document, from the begin of its sample or piece on. Shapes:
  /// (microbatch, context), int64. Pre: the loader reads them.
  [[nodiscard]] ConstTensorView positions(std::int64_t microbatch) const;
  /// Dataset::reference() of each sample. Shapes: (microbatch), float64. Pre: the loader reads
  /// them.
  [[nodiscard]] ConstTensorView references(std::int64_t microbatch) const;
  /// The buffer that holds all microbatches, as bytes.
  [[nodiscard]] const ConstTensorView& memory() const { return memory_; }

 private:
  friend class Loader;

  std::int64_t step_ = -1;
  ConstTensorView memory_;
  std::vector<ConstTensorView> inputs_;
  std::vector<ConstTensorView> targets_;
  std::vector<ConstTensorView> document_starts_;
  std::vector<ConstTensorView> positions_;
  std::vector<ConstTensorView> references_;
};

/// Reads, verifies and converts samples in background threads, double-buffered by step. Row r of
/// the microbatch at offset o of step s holds the sample at stream index s * global_batch + o + r
/// (sample_order.hpp).
class Loader {
 public:
  /// Starts reading at once.
  /// Pre: `dataset` outlives the loader; a data set of tokens has its context set.
  /// Throws: std::logic_error for contradictory options.
  Loader(const Dataset& dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Waits for the next step, which stays valid until the next call.
  /// Pre: called at most options.steps times.
  /// Throws: Error(kData) for a sample that is damaged or holds NaN or infinity, and for a label or
  /// token out of range.
  const LoadedStep& next();

  /// Whether next() would return a step without waiting.
  [[nodiscard]] bool ready() const;

  /// Size of LoadedStep::memory().
  [[nodiscard]] static std::int64_t step_bytes(const DatasetInfo& info,
                                               const LoaderOptions& options);
  /// Size of the two buffers.
  [[nodiscard]] static std::int64_t memory_bytes(const DatasetInfo& info,
                                                 const LoaderOptions& options);

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;
};

}  // namespace strata::io
