#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "strata/core/enum_names.hpp"
#include "strata/core/tensor.hpp"
#include "strata/grid/grid.hpp"

namespace strata::nn {

/// How weights are initialised.
enum class Initializer {
  kFanIn,   ///< uniform in +-1 / sqrt(inputs); PyTorch's default for dense layers
  kGlorot,  ///< uniform in +-sqrt(6 / (inputs + outputs)); Keras' default
  kHe,      ///< normal with deviation sqrt(2 / inputs)
  kNormal,  ///< normal with the spec's deviation
  kZeros,
  kOnes
};

constexpr auto enum_names(Initializer) {
  return names_in_order("fan_in", "glorot", "he", "normal", "zeros", "ones");
}

/// Whether a layer owns a parameter or borrows another layer's, as a head tied to the embedding.
enum class Ownership { kOwned, kBorrowed };

/// How a step updates a parameter.
enum class ParameterRule {
  kTrained,  ///< by the optimizer
  kFrozen,   ///< not at all; it counts in no norm and has no optimizer state
  kAverage   ///< parameter = keep * parameter + gradient: a running average over microbatches. It
             ///< counts in no norm, is neither clipped nor decayed, and has no optimizer state
};

/// The split of a replicated parameter.
inline constexpr std::int64_t kNotSplit = -1;

/// The name of a layer's parameter, as in parameter_name("dense1", "weight") = "dense1.weight".
[[nodiscard]] inline std::string parameter_name(std::string_view layer, std::string_view part) {
  return std::string(layer).append(".").append(part);
}

/// The matrices of a low-rank adapter, as in "blocks.0.attention.qkv.lora_a".
inline constexpr std::string_view kAdapterA = "lora_a";
inline constexpr std::string_view kAdapterB = "lora_b";

[[nodiscard]] inline bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(kAdapterA) || parameter.ends_with(kAdapterB);
}

/// One weight tensor of a model: its global name and shape, the same on every grid.
struct ParameterSpec {
  std::string name;
  Shape shape;
  Initializer initializer = Initializer::kZeros;
  /// For kNormal.
  double deviation = 0.02;
  /// Inputs and outputs of the layer, for the initializers that scale by them.
  std::int64_t fan_in = 1;
  std::int64_t fan_out = 1;
  /// The layer that holds it.
  std::int64_t layer = 0;
  /// The dimension that shards divide, or kNotSplit.
  std::int64_t split = kNotSplit;
  /// Consecutive indices of that dimension that one shard holds whole, as the rows of one head.
  std::int64_t unit = 1;
  /// A borrowed parameter has the owned one's name and shape and adds to its gradient.
  Ownership ownership = Ownership::kOwned;
  ParameterRule rule = ParameterRule::kTrained;
  /// For kAverage: the weight of the old value.
  double keep = 0.0;
};

[[nodiscard]] inline bool is_matrix(const ParameterSpec& spec) {
  return spec.shape.rank() >= 2;
}

/// False for frozen matrices: layers do not compute their gradients.
[[nodiscard]] inline bool has_gradient(const ParameterSpec& spec) {
  return spec.rule != ParameterRule::kFrozen || !is_matrix(spec);
}

/// The S virtual shards and the consecutive ones among them that a tensor rank holds.
struct Shards {
  std::int64_t count = 1;
  grid::Range own{0, 1};

  friend bool operator==(const Shards&, const Shards&) = default;
};

/// One shard's part of `count` indices, split as evenly as whole units allow.
/// Pre: unit divides count.
[[nodiscard]] inline grid::Range shard_part(std::int64_t count, std::int64_t unit,
                                            std::int64_t shards, std::int64_t shard) {
  const grid::Range units = grid::even_part(count / unit, shards, shard);
  return {units.begin * unit, units.end * unit};
}

/// Where one parameter, or one shard's slice of a split one, lies in the arenas of its stage.
struct PlacedParameter {
  ParameterSpec spec;
  /// Its index among all parameters of the model, which is the canonical order.
  std::int64_t index = 0;
  /// Which slice, and its shape; shard 0 and the spec's shape where the parameter is not split.
  std::int64_t shard = 0;
  Shape shape;
  /// Of the slice, in the split dimension.
  std::int64_t first_index = 0;
  std::int64_t offset = 0;  ///< of its first element in the arena

  [[nodiscard]] bool is_slice() const { return shape != spec.shape; }
};

/// The layout that the arenas of a stage's weights, gradients and optimizer state have in common.
/// Every parameter begins at a multiple of kBlock elements, so that sums over blocks do not depend
/// on how the arena is sliced.
struct ParameterLayout {
  static constexpr std::int64_t kBlock = 1024;

  /// In arena order: owned parameters in canonical order, each in shard order, then borrowed ones.
  std::vector<PlacedParameter> parameters;
  /// Length of the gradients' arena, a multiple of kBlock; gaps hold zeros.
  std::int64_t elements = 0;
  /// Length of the weights' arena. It is shorter where the last parameters are borrowed from this
  /// very stage: these have gradients but no weights of their own.
  std::int64_t weight_elements = 0;
  /// The owned parameters that a layer borrows, and the borrowed ones; empty where there are none.
  /// Both have the same length on whichever stages they lie, so that they split into equal buckets.
  grid::Range shared;
  grid::Range borrowed;
  /// Where the owned parameters of each chunk after the first begin.
  std::vector<std::int64_t> chunk_begins;
};

/// Which parameters a layout holds.
enum class Placed {
  kWithGradients,
  kFrozen  ///< those without has_gradient(): only their weights have an arena
};

/// The layout of those parameters whose layer is in one of the chunks, with the slices of the own
/// shards. Pre: `all` is in canonical order; the chunks ascend.
[[nodiscard]] ParameterLayout layout_of(const std::vector<ParameterSpec>& all,
                                        std::span<const grid::Range> chunks,
                                        const Shards& shards = {},
                                        Placed which = Placed::kWithGradients);
/// The same for one chunk.
[[nodiscard]] ParameterLayout layout_of(const std::vector<ParameterSpec>& all,
                                        const grid::Range& layers, const Shards& shards = {});

/// Fills elements [begin, begin + weight.count()) of a placed slice, row-major, from its
/// initializer: an element is a function of (seed, name, its index in the whole parameter) alone.
void initialise(const PlacedParameter& placed, std::uint64_t seed, std::int64_t begin,
                const TensorView& weight);

}  // namespace strata::nn
