#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "stage_bench.hpp"

namespace strata::nn::test {

/// A model of token ids with `vocabulary` outputs.
inline Model language_model(std::vector<std::string> layers, std::int64_t context,
                            std::int64_t vocabulary, std::int64_t shards,
                            Placement token_rows = Placement::kReplicated) {
  return Model({.layers = std::move(layers),
                .input_shape = Shape{context},
                .outputs = vocabulary,
                .seed = 3,
                .input_kind = InputKind::kTokenIds,
                .shards = shards,
                .token_rows = token_rows});
}

/// Token ids below `vocabulary`, a function of the subject and the index.
inline std::vector<std::int64_t> token_ids(std::int64_t count, std::int64_t vocabulary,
                                           std::uint64_t subject) {
  const RandomStream stream(23, RandomPurpose::kSynthesise, subject);
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<std::int64_t>(static_cast<double>(vocabulary) *
                                            stream.uniform(static_cast<std::uint64_t>(i))));
  }
  return ids;
}

/// What training on some microbatches gives: everything that law 1 fixes. The values of a wider
/// type than they were computed in.
struct Trained {
  std::vector<double> losses;
  /// By microbatch and, where the output is split, shard.
  std::map<std::string, std::vector<double>> outputs;
  std::vector<std::vector<double>> input_gradients;
  /// By slice.
  std::map<std::string, std::vector<double>> gradients;

  friend bool operator==(const Trained&, const Trained&) = default;
};

template <typename T>
std::vector<double> widened(std::span<const T> values) {
  std::vector<double> wide;
  for (const T& value : values) {
    wide.push_back(static_cast<double>(static_cast<Compute<T>>(value)));
  }
  return wide;
}

/// Samples for a stage that holds the last layer, and its first stage's input where it is not the
/// first itself.
struct Samples {
  /// One a microbatch: token ids, or numbers that are converted to the stage's type.
  std::vector<std::vector<std::int64_t>> ids;
  std::vector<std::vector<double>> numbers;
  std::vector<std::vector<std::int64_t>> targets;
};

inline Samples language_samples(std::int64_t microbatches, std::int64_t tokens,
                                std::int64_t vocabulary) {
  Samples samples;
  for (std::int64_t m = 0; m < microbatches; ++m) {
    samples.ids.push_back(token_ids(tokens, vocabulary, static_cast<std::uint64_t>(2 * m)));
    samples.targets.push_back(token_ids(tokens, vocabulary, static_cast<std::uint64_t>(2 * m + 1)));
  }
  return samples;
}

inline Samples number_samples(std::int64_t microbatches, std::int64_t microbatch,
                              std::int64_t features, std::int64_t classes) {
  Samples samples;
  for (std::int64_t m = 0; m < microbatches; ++m) {
    samples.numbers.push_back(
        test::numbers<double>(microbatch * features, static_cast<std::uint64_t>(m)));
    samples.targets.push_back(token_ids(microbatch, classes, static_cast<std::uint64_t>(m)));
  }
  return samples;
}

/// Forward, loss and backward of all samples through one stage up to the model's end, which is the
/// whole model or, for numbers, all of it behind the first layer.
template <typename T>
Trained train(const Model& model, StageBench<T>& bench, const Samples& samples) {
  Stage& stage = bench.stage();
  const PassShape& pass = bench.spec().pass;
  const Port& output = model.output();
  const std::int64_t rows = rows_at(output, pass.microbatch);
  ArenaSink<Compute<T>> sink(bench.layout().elements);
  Trained result;
  for (std::size_t i = 0; i < samples.targets.size(); ++i) {
    const auto m = static_cast<std::int64_t>(i);
    ConstTensorView input;
    if (stage.is_first()) {
      input = {std::span(samples.ids[i]), model.input_shape().prepended(pass.microbatch)};
    } else {
      const std::span<T> received = stage.inputs_of(m).front().host<T>();
      for (std::size_t e = 0; e < received.size(); ++e) {
        received[e] = static_cast<T>(static_cast<Compute<T>>(samples.numbers[i][e]));
      }
      input = stage.inputs_of(m).front();
    }
    const std::int64_t first_sample = m * pass.microbatch;
    stage.forward(Alone(m, input, first_sample), Mode::kTraining);
    const bool in_pieces = pass.loss_pieces > 1;
    const ConstTensorView found =
        in_pieces ? ConstTensorView() : stage.outputs_of(Alone(m, input, 0).microbatch).front();
    if (in_pieces) {
      result.outputs["in pieces"] = {};
    } else if (output.placement == Placement::kFeatures) {
      for (std::int64_t s = pass.shards.own.begin; s < pass.shards.own.end; ++s) {
        const LogitBlocks blocks = logit_blocks(output, pass);
        const ConstTensorView block = blocks.block(found, s);
        std::vector<double>& outputs = result.outputs[fmt::format("{} block {}", m, s)];
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::vector<double> of_row = widened(
              block.flat_slice(row * blocks.columns(s), blocks.ids(s).count()).template host<T>());
          outputs.insert(outputs.end(), of_row.begin(), of_row.end());
        }
      }
    } else {
      result.outputs[std::to_string(m)] = widened(found.host<T>());
    }
    const ConstTensorView targets{std::span(samples.targets[i]),
                                  Shape{std::ssize(samples.targets[i])}};
    stage.loss(Alone(m, input, 0).microbatch, targets, pass.microbatch, 0.25, Mode::kTraining);
    stage.backward_input(Alone(m, input, first_sample), sink);
    result.losses.push_back(stage.losses().front().loss);
    if (!stage.is_first()) {
      result.input_gradients.push_back(
          widened(ConstTensorView(stage.input_gradients_of(m).front()).template host<T>()));
    }
    stage.backward_weight(Alone(m, input, first_sample), sink);
  }
  for (const auto& [name, values] : slices_of(bench.layout(), sink.gradients())) {
    result.gradients[name] = widened(std::span<const Compute<T>>(values));
  }
  return result;
}

}  // namespace strata::nn::test
