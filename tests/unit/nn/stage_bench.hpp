#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strata/core/random.hpp"
#include "strata/nn/stage.hpp"

namespace strata::nn::test {

/// Numbers spread evenly over [-1, 1), a function of the subject and the index.
template <typename T>
std::vector<T> numbers(std::int64_t count, std::uint64_t subject) {
  const RandomStream stream(17, RandomPurpose::kSynthesise, subject);
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<T>(2.0 * stream.uniform(static_cast<std::uint64_t>(i)) - 1.0));
  }
  return values;
}

/// Takes the gradients of all microbatches into one arena and remembers the calls.
template <typename T>
class ArenaSink final : public GradientSink {
 public:
  explicit ArenaSink(std::int64_t elements)
      : gradients_(static_cast<std::size_t>(elements), T{-77}) {}

  Target target(std::int64_t m) override {
    const auto accumulate = m == 0 ? ops::Accumulate::kOverwrite : ops::Accumulate::kAdd;
    return {.gradients = view(), .accumulate = accumulate};
  }
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

/// A stage with weights of its own, drawn so that no gradient vanishes.
template <typename T>
class StageBench {
 public:
  StageBench(const Model& model, const grid::Range& layers, std::int64_t microbatch,
             const StageSlots& slots)
      : layout_(layout_of(model.parameters(), layers)),
        weights_(static_cast<std::size_t>(layout_.elements)),
        stage_(context_, model, layers, microbatch, slots, weight_view()) {
    for (const PlacedParameter& placed : layout_.parameters) {
      const std::vector<T> values =
          numbers<T>(placed.spec.shape.count(), 1000 + static_cast<std::uint64_t>(placed.index));
      std::copy(values.begin(), values.end(), weights_.begin() + placed.offset);
    }
  }

  [[nodiscard]] Stage& stage() { return stage_; }
  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  /// The elements of one parameter.
  [[nodiscard]] std::span<T> weight(const PlacedParameter& placed) {
    return std::span(weights_).subspan(static_cast<std::size_t>(placed.offset),
                                       static_cast<std::size_t>(placed.spec.shape.count()));
  }

 private:
  [[nodiscard]] TensorView weight_view() { return {std::span(weights_), Shape{layout_.elements}}; }

  ops::Context context_{1};
  ParameterLayout layout_;
  std::vector<T> weights_;
  Stage stage_;
};

}  // namespace strata::nn::test
