#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "strata/core/random.hpp"
#include "strata/nn/stage.hpp"

namespace strata::nn::test {

/// Numbers spread evenly over [-1, 1), a function of the subject and the index.
template <typename T>
std::vector<T> numbers(std::int64_t count, std::uint64_t subject) {
  const RandomStream stream(17, RandomPurpose::kSynthesise, subject);
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(
        static_cast<Compute<T>>(2.0 * stream.uniform(static_cast<std::uint64_t>(i)) - 1.0)));
  }
  return values;
}

/// The only microbatch of an execution, whose number is the execution's index. `input` is the
/// loader's.
struct Alone {
  Alone(std::int64_t m, const ConstTensorView& input, std::int64_t first_sample)
      : microbatch{
            .number = m, .execution_index = m, .input = input, .first_sample = first_sample} {}
  // NOLINTNEXTLINE(google-explicit-constructor): passes take it as a list of one.
  operator std::span<const Microbatch>() const { return {&microbatch, 1}; }

  Microbatch microbatch;
};

/// Takes the gradients of all microbatches into one arena and remembers the calls.
template <typename T>
class ArenaSink final : public GradientSink {
 public:
  explicit ArenaSink(std::int64_t elements)
      : gradients_(static_cast<std::size_t>(elements), T{-77}) {}

  Target begin_microbatch(std::int64_t m, const grid::Range& /*layers*/) override {
    const auto accumulate = m == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd;
    return {.gradients = view(), .accumulate = accumulate};
  }
  bool acts_on(std::int64_t /*m*/, std::int64_t /*layer*/) const override { return true; }
  void layer_done(std::int64_t m, std::int64_t layer) override { done_.push_back(m * 100 + layer); }
  void finish() override {}

  [[nodiscard]] TensorView view() {
    return {std::span(gradients_), Shape{static_cast<std::int64_t>(gradients_.size())}};
  }
  [[nodiscard]] const std::vector<T>& gradients() const { return gradients_; }
  /// 100 m + layer of every call of layer_done.
  [[nodiscard]] const std::vector<std::int64_t>& done() const { return done_; }

 private:
  std::vector<T> gradients_;
  std::vector<std::int64_t> done_;
};

/// The spec of a stage that computes with elements of type T and keeps one microbatch; the bench
/// fills in the shards.
template <typename T>
StageSpec spec_of(const grid::Range& layers, std::int64_t microbatch) {
  return {.layers = layers,
          .pass = {.microbatch = microbatch, .dtype = kDTypeOf<T>},
          .slots = {.activations = 1, .inputs = layers.begin == 0 ? 0 : 1, .gradients = 1}};
}

/// A stage with weights of its own, drawn so that no gradient vanishes; a weight's value depends on
/// its index in the whole parameter alone.
template <typename T>
class StageBench {
 public:
  /// With all shards on this rank.
  StageBench(const Model& model, const StageSpec& spec)
      : StageBench(model, spec, comm::ShardGroup(model.shards())) {}
  StageBench(const Model& model, const StageSpec& spec, comm::ShardGroup shards,
             comm::PartitionedGroup* lanes = nullptr)
      : shards_(std::move(shards)),
        spec_(with_shards(spec, shards_)),
        layout_(layout_of(model.parameters(), spec_.layers, spec_.pass.shards)),
        weights_(static_cast<std::size_t>(layout_.weight_elements)),
        stage_(context_, engine_, shards_, model, spec_, layout_, weight_view(), lanes) {
    for (const PlacedParameter& placed : layout_.parameters) {
      if (placed.offset < layout_.weight_elements) {
        fill(placed);
      }
    }
  }

  [[nodiscard]] Stage& stage() { return stage_; }
  [[nodiscard]] comm::ShardGroup& shards() { return shards_; }
  [[nodiscard]] const StageSpec& spec() const { return spec_; }
  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  /// The elements of one slice.
  [[nodiscard]] std::span<T> weight(const PlacedParameter& placed) {
    return std::span(weights_).subspan(static_cast<std::size_t>(placed.offset),
                                       static_cast<std::size_t>(placed.shape.count()));
  }

 private:
  static StageSpec with_shards(StageSpec spec, const comm::ShardGroup& shards) {
    spec.pass.shards = {.count = shards.shards(), .own = shards.own()};
    return spec;
  }

  [[nodiscard]] TensorView weight_view() {
    return {std::span(weights_), Shape{layout_.weight_elements}};
  }

  void fill(const PlacedParameter& placed) {
    const Shape& whole = placed.spec.shape;
    const std::vector<T> values =
        numbers<T>(whole.count(), 1000 + subject_of(placed.spec.name) % 1000);
    const auto split =
        placed.spec.split == kNotSplit ? 0 : static_cast<std::size_t>(placed.spec.split);
    std::int64_t run = 1;
    for (std::size_t d = split; d < whole.rank(); ++d) {
      run *= whole[d];
    }
    const std::int64_t inner = run / whole[split];
    const std::int64_t local_run = placed.shape[split] * inner;
    const std::span<T> elements = weight(placed);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const auto local = static_cast<std::int64_t>(i);
      elements[i] = values[static_cast<std::size_t>(
          local / local_run * run + placed.first_index * inner + local % local_run)];
    }
  }

  ops::Context context_{1};
  comm::ProgressEngine engine_;
  comm::ShardGroup shards_;
  StageSpec spec_;
  ParameterLayout layout_;
  std::vector<T> weights_;
  Stage stage_;
};

/// The gradients of a stage's slices, by name, ownership and shard.
template <typename T>
std::map<std::string, std::vector<T>> slices_of(const ParameterLayout& layout,
                                                const std::vector<T>& gradients) {
  std::map<std::string, std::vector<T>> slices;
  for (const PlacedParameter& placed : layout.parameters) {
    const bool borrowed = placed.spec.ownership == Ownership::kBorrowed;
    const auto begin = gradients.begin() + placed.offset;
    slices[fmt::format("{}{} {}", placed.spec.name, borrowed ? " borrowed" : "", placed.shard)] = {
        begin, begin + placed.shape.count()};
  }
  return slices;
}

}  // namespace strata::nn::test
