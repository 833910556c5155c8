#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "strata/core/dtype.hpp"
#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"
#include "strata/io/dataset.hpp"
#include "strata/io/sample_order.hpp"

namespace strata::io {

/// Which parts of samples a loader reads: the first stage needs inputs, the last one targets.
enum class Parts : unsigned { kInputs = 1, kTargets = 2, kBoth = 3 };

/// Whether `parts` has all of `part`.
[[nodiscard]] constexpr bool contains(Parts parts, Parts part) {
  return (static_cast<unsigned>(parts) & static_cast<unsigned>(part)) ==
         static_cast<unsigned>(part);
}

/// What is done to inputs on their way from the data set.
enum class Normalise {
  kAuto,     ///< kUnit for bytes, kNone for floating-point numbers
  kNone,     ///< x
  kUnit,     ///< x / 255
  kStandard  ///< (x - mean) / deviation, with the train split's; a deviation of 0 counts as 1
};

constexpr auto enum_names(Normalise) {
  return names_in_order("auto", "none", "unit", "standard");
}

/// What kAuto stands for, with inputs that are stored in this type.
[[nodiscard]] Normalise resolved(Normalise normalise, DType stored);

enum class Flip { kOff, kOn };

constexpr auto enum_names(Flip) {
  return names_in_order("off", "on");
}

/// What is done to images at random, for training: cropped, then flipped, then cut out. Zeros are
/// those of the normalised input. A sample's random numbers are counted by its place in the stream.
struct Augmentation {
  Flip flip = Flip::kOff;  ///< left and right change places in half of the images
  /// Zeros put around an image, out of which a part of its own size is cut.
  std::int64_t crop_padding = 0;
  /// Side of a square of zeros; its centre is anywhere in the image, what is outside is clipped.
  std::int64_t cutout = 0;

  friend bool operator==(const Augmentation&, const Augmentation&) = default;
};

/// What a loader gives to one rank.
struct LoaderOptions {
  Order order = Order::kShuffled;
  /// Of tokens, in shuffled order; a sequential one is always of blocks.
  Sampling sampling = Sampling::kBlocks;
  std::uint64_t seed = 0;
  /// Samples of all ranks together in a step.
  std::int64_t global_batch = 1;
  /// Samples in a microbatch.
  std::int64_t microbatch = 1;
  /// First sample of each of this rank's microbatches within the global batch, in execution order.
  std::vector<std::int64_t> offsets{0};
  /// The first step to give; 0 is the first of the run.
  std::int64_t first_step = 0;
  /// How many steps to give.
  std::int64_t steps = 1;
  /// Floating-point type of the inputs and of targets that are values.
  DType compute_dtype = DType::kFloat32;
  Parts parts = Parts::kBoth;
  Normalise normalise = Normalise::kAuto;
  Augmentation augmentation;
  /// Threads that read; the numbers do not depend on them.
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
  /// Shapes: (microbatch, target shape...); int64 for classes and tokens, the compute dtype
  /// for values.
  /// Pre: the loader reads targets.
  [[nodiscard]] ConstTensorView targets(std::int64_t microbatch) const;
  /// The memory that all of these lie in, as bytes.
  [[nodiscard]] const ConstTensorView& memory() const { return memory_; }

 private:
  friend class Loader;

  std::int64_t step_ = -1;
  ConstTensorView memory_;
  std::vector<ConstTensorView> inputs_;
  std::vector<ConstTensorView> targets_;
};

/// Reads, checks and converts the samples of coming steps in threads of its own, two steps deep.
/// The sample in row r of the microbatch at offset o of step s is the one at place
/// s * global_batch + o + r of the stream (sample_order.hpp).
class Loader {
 public:
  /// Starts reading at once. Pre: `dataset` outlives the loader, and has samples: one of tokens
  /// has its context set.
  /// Throws: std::logic_error for options that contradict each other.
  Loader(const Dataset& dataset, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Waits for the next step; it stays valid until the following call. Pre: fewer than
  /// options.steps steps were given.
  /// Throws: Error(kData) for a sample that is damaged, holds NaN or infinity, or a label or token
  /// that is no class.
  const LoadedStep& next();

  /// Whether there is a next step and next() would give it at once.
  [[nodiscard]] bool ready() const;

  /// Time that the last next() waited.
  [[nodiscard]] double wait_seconds() const;
  /// Size of the two buffers.
  [[nodiscard]] std::int64_t memory_bytes() const;
  /// Size of LoadedStep::memory().
  [[nodiscard]] static std::int64_t step_bytes(const DatasetInfo& info,
                                               const LoaderOptions& options);
  /// The same before anything is allocated.
  [[nodiscard]] static std::int64_t memory_bytes(const DatasetInfo& info,
                                                 const LoaderOptions& options);

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;
};

}  // namespace strata::io
