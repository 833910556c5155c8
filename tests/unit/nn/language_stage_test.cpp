// Memory of sublayers that recompute, and losses in pieces of rows.
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/uncounted.hpp"
#include "strata/ops/split_cross_entropy.hpp"

#include "error_of.hpp"
#include "language_bench.hpp"

namespace strata::nn::test::language_stage_test {
namespace {

constexpr std::int64_t kMicrobatch = 2;
constexpr std::int64_t kMicrobatches = 2;
constexpr std::int64_t kContext = 6;
constexpr std::int64_t kVocabulary = 11;

TEST(LossPieces, EvaluateToTheLossOfTrainingAndNameABadTarget) {
  const Model model = language_model({"embedding 8", "head"}, kContext, kVocabulary, 2);
  StageSpec spec = spec_of<float>({0, 2}, kMicrobatch);
  spec.order = BackwardOrder::kFused;
  spec.pass.loss_pieces = 4;
  spec.slots.losses = 2;
  StageBench<float> bench(model, spec);
  Stage& stage = bench.stage();
  Samples samples = language_samples(1, kMicrobatch * kContext, kVocabulary);
  const ConstTensorView input{std::span(samples.ids[0]), {kMicrobatch, kContext}};
  const ConstTensorView targets{std::span(samples.targets[0]), {kMicrobatch, kContext}};
  ArenaSink<float> sink(bench.layout().elements);
  const auto run = [&](std::int64_t number, Mode mode, std::int64_t valid) {
    const Alone alone(number, input, 0);
    stage.forward(alone, mode);
    stage.loss(alone.microbatch, targets, valid, 1.0, mode);
    if (mode == Mode::kTraining) {
      stage.backward_input(alone, sink);
    }
  };
  for (const std::int64_t valid : {kMicrobatch, kMicrobatch - 1}) {
    run(0, Mode::kTraining, valid);
    run(1, Mode::kEvaluation, valid);
    const std::vector<MicrobatchLoss> losses = stage.losses();
    ASSERT_EQ(losses.size(), 2U);
    EXPECT_GT(losses[0].loss, 0.0);
    EXPECT_EQ(losses[0].loss, losses[1].loss);
    EXPECT_EQ(losses[0].correct, losses[1].correct);
  }
  samples.targets[0][7] = kVocabulary;
  run(1, Mode::kEvaluation, kMicrobatch);
  EXPECT_THAT(strata::test::error_of([&] { static_cast<void>(stage.losses()); }, ExitCode::kData),
              testing::HasSubstr("row 7 of a microbatch has the target 11"));
}

// Pieces of 6, 4, 3 and 1 rows: those of 4 lie in two samples.
TEST(LossPieces, TellTheLossOfEachSample) {
  for (const std::int64_t shards : {1, 2}) {
    Model model = language_model({"embedding 8", "head"}, kContext, kVocabulary, shards);
    model.keep_sample_losses();
    Samples samples = language_samples(1, kMicrobatch * kContext, kVocabulary);
    samples.targets[0][3] = samples.targets[0][8] = samples.targets[0][9] = kUncounted;
    const ConstTensorView input{std::span(samples.ids[0]), {kMicrobatch, kContext}};
    const ConstTensorView targets{std::span(samples.targets[0]), {kMicrobatch, kContext}};
    std::vector<MicrobatchLoss::Sample> whole;
    for (const std::int64_t pieces : {1, 2, 3, 4, 12}) {
      SCOPED_TRACE(fmt::format("{} shards, {} pieces", shards, pieces));
      StageSpec spec = spec_of<float>({0, 2}, kMicrobatch);
      spec.order = BackwardOrder::kFused;
      spec.pass.loss_pieces = pieces;
      spec.slots.losses = 2;
      StageBench<float> bench(model, spec);
      for (const std::int64_t number : {0, 1}) {
        const Alone alone(number, input, 0);
        bench.stage().forward(alone, Mode::kEvaluation);
        bench.stage().loss(alone.microbatch, targets, kMicrobatch - number, 1.0, Mode::kEvaluation);
      }
      const std::vector<MicrobatchLoss> losses = bench.stage().losses();
      for (const MicrobatchLoss& one : losses) {
        ASSERT_EQ(one.samples.size(), 2U);
        EXPECT_NEAR(one.samples[0].loss + one.samples[1].loss, one.loss, 1e-5);
      }
      whole = whole.empty() ? losses[0].samples : whole;
      EXPECT_EQ(losses[0].samples[0].counted, 5.0);
      EXPECT_EQ(losses[0].samples[1].counted, 4.0);
      EXPECT_NEAR(losses[0].samples[0].loss, whole[0].loss, 1e-5);
      EXPECT_NEAR(losses[0].samples[1].loss, whole[1].loss, 1e-5);
      // The second sample of the second microbatch is padding.
      EXPECT_EQ(losses[1].samples[0].loss, losses[0].samples[0].loss);
      EXPECT_EQ(losses[1].samples[1].loss, 0.0);
      EXPECT_EQ(losses[1].samples[1].counted, 0.0);
    }
  }
}

std::int64_t bytes_of(const Model& model, const StageSpec& spec, const std::string& name) {
  for (const MemoryItem& item : Stage::memory(model, std::span(&spec, 1))) {
    if (item.name == name) {
      return item.bytes;
    }
  }
  ADD_FAILURE() << name;
  return 0;
}

/// What a tensor takes of an arena.
std::int64_t line(std::int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

TEST(StageMemory, OfASublayerIsWhatItsTensorsTake) {
  const Model model({.layers = {"relu", "attention 4 dropout=0.2", "mlp 12 swiglu", "flatten"},
                     .input_shape = Shape{kContext, 8},
                     .outputs = kContext * 8,
                     .shards = 2});
  StageSpec spec = spec_of<float>({1, 4}, kMicrobatch);
  spec.pass.shards = {.count = 2, .own = {0, 2}};
  spec.order = BackwardOrder::kFused;
  const std::int64_t rows = kMicrobatch * kContext;
  const std::int64_t wide = line(rows * 8 * 4);
  const std::int64_t statistics = 2 * line(rows * 4);
  const std::int64_t mask = line(rows * 8);
  const std::int64_t qkv = line(rows * 24 * 4);
  const std::int64_t log_sums = 2 * line(kMicrobatch * 2 * kContext * 4);
  const std::int64_t hidden = line(rows * 12 * 4);
  const auto activations = [&](Recompute recompute) {
    spec.pass.recompute = recompute;
    return bytes_of(model, spec, "activations");
  };
  const auto again = [&] { return bytes_of(model, spec, "recomputed activations"); };
  // Of both sublayers the output, statistics and the normalised rows; then attention's mask,
  // result, qkv and sums, and the MLP's result and two products.
  EXPECT_EQ(activations(Recompute::kNone),
            2 * (2 * wide + statistics) + mask + wide + qkv + log_sums + 3 * hidden);
  EXPECT_EQ(again(), 0);
  EXPECT_EQ(activations(Recompute::kSelective),
            2 * (wide + statistics) + mask + wide + qkv + log_sums + 2 * hidden);
  EXPECT_EQ(again(), wide + hidden);
  EXPECT_EQ(activations(Recompute::kFull), 2 * wide + mask);
  EXPECT_EQ(again(), statistics + wide + std::max(wide + qkv + log_sums, 3 * hidden));
}

TEST(StageMemory, NothingStandsBetweenAProductAndTheGradientOfGelu) {
  const auto workspace_of = [](const std::string& mlp) {
    const Model model({.layers = {"relu", mlp, "flatten"},
                       .input_shape = Shape{kContext, 8},
                       .outputs = kContext * 8,
                       .shards = 1});
    return bytes_of(model, spec_of<float>({1, 2}, kMicrobatch), "workspace");
  };
  EXPECT_EQ(workspace_of("mlp 12 gelu") + line(kMicrobatch * kContext * 12 * 4),
            workspace_of("mlp 12 relu"));
}

template <typename T>
Trained with_logits_of(std::int64_t multiple, std::int64_t vocabulary, std::int64_t shards,
                       const std::string& head, std::int64_t loss_pieces) {
  const Model model = language_model({"embedding 8", "mlp 12", head}, kContext, vocabulary, shards);
  StageSpec spec = spec_of<T>({0, model.layer_count()}, kMicrobatch);
  spec.pass.logit_multiple = multiple;
  spec.pass.loss_pieces = loss_pieces;
  spec.order = BackwardOrder::kFused;
  StageBench<T> bench(model, spec);
  return train(model, bench, language_samples(kMicrobatches, kMicrobatch * kContext, vocabulary));
}

// As on GPUs. The memory behind the ids is not initialised by a forward pass.
TEST(PaddedLogits, GiveTheSameBits) {
  for (const std::int64_t vocabulary : {5, 13, 16}) {
    for (const std::int64_t shards : {1, 3}) {
      for (const std::string head : {"head", "head tied=off"}) {
        for (const std::int64_t pieces : {1, 3}) {
          SCOPED_TRACE(
              fmt::format("{} of {} ids, {} shards, {} pieces", head, vocabulary, shards, pieces));
          EXPECT_EQ(with_logits_of<float>(8, vocabulary, shards, head, pieces),
                    with_logits_of<float>(1, vocabulary, shards, head, pieces));
          EXPECT_EQ(with_logits_of<BFloat16>(8, vocabulary, shards, head, pieces),
                    with_logits_of<BFloat16>(1, vocabulary, shards, head, pieces));
        }
      }
    }
  }
}

// Only a head's rows are padded.
TEST(PaddedLogits, AreOnlyAHeads) {
  const Model model({.layers = {"dense 8 relu", "dense 10 parallel=column"},
                     .input_shape = Shape{4},
                     .outputs = 10,
                     .seed = 3,
                     .shards = 2});
  const auto result = [&](std::int64_t multiple) {
    StageSpec spec = spec_of<float>({1, 2}, kMicrobatch);
    spec.pass.logit_multiple = multiple;
    StageBench<float> bench(model, spec);
    return train(model, bench, number_samples(kMicrobatches, kMicrobatch, 8, 10));
  };
  EXPECT_EQ(result(8), result(1));
  EXPECT_THROW(language_model({"embedding 8", "head", "dropout 0.1"}, kContext, 5, 1), Error);
}

TEST(StageMemory, LogitsInPiecesAreInTheWorkspace) {
  const Model model = language_model({"embedding 8", "head"}, kContext, kVocabulary, 1);
  StageSpec spec = spec_of<float>({0, 2}, kMicrobatch);
  spec.order = BackwardOrder::kFused;
  const std::int64_t rows = kMicrobatch * kContext;
  const auto parts = [&](std::int64_t of_rows) {
    return 2 * line(of_rows * ops::kCrossEntropyParts * 4) + line(of_rows * 4);
  };
  const std::int64_t others = line(rows * 8 * 4);
  EXPECT_EQ(bytes_of(model, spec, "activations"), others + line(rows * kVocabulary * 4));
  EXPECT_EQ(bytes_of(model, spec, "workspace"), parts(rows));
  spec.pass.loss_pieces = 4;
  EXPECT_EQ(bytes_of(model, spec, "activations"), others);
  EXPECT_EQ(bytes_of(model, spec, "workspace"), line(rows / 4 * kVocabulary * 4) + parts(rows / 4));
  EXPECT_EQ(bytes_of(model, spec, "activation gradients"), 0);
}

TEST(StageMemory, LabelSmoothingTakesAFifthPartOfEachRow) {
  ModelOptions options{.layers = {"dense 6"}, .input_shape = {3}, .outputs = 6};
  const auto workspace = [&](const ops::LossTerms& terms) {
    options.loss.terms = terms;
    return bytes_of(Model(options), spec_of<float>({0, 1}, kMicrobatch), "workspace");
  };
  EXPECT_EQ(workspace({}), 0);
  // Logits that are not split are one shard.
  EXPECT_EQ(workspace({.z_loss = 0.1}),
            line(kMicrobatch * ops::kCrossEntropyParts * 4) + line(kMicrobatch * 4));
  EXPECT_EQ(workspace({.label_smoothing = 0.1}),
            line(kMicrobatch * ops::kSmoothedParts * 4) + line(kMicrobatch * 4));
}

TEST(StageMemory, GradientOfLogitsTakesTheirPlace) {
  const Model model = language_model({"embedding 8", "mlp 12", "head"}, kContext, kVocabulary, 2);
  const StageSpec spec = spec_of<float>({0, model.layer_count()}, kMicrobatch);
  StageBench<float> bench(model, spec);
  const std::vector<std::int64_t> ids = token_ids(kMicrobatch * kContext, kVocabulary, 1);
  const ConstTensorView input{std::span(ids), Shape{kMicrobatch, kContext}};
  EXPECT_EQ(bench.stage().output_gradients_of(0).front().raw(),
            bench.stage().outputs_of(Alone(0, input, 0).microbatch).front().raw());
  // A last layer whose backward pass reads its output keeps it.
  const Model ends_with_relu(
      {.layers = {"relu", "dense 4 relu"}, .input_shape = Shape{8}, .outputs = 4});
  StageBench<float> other(ends_with_relu, spec_of<float>({1, 2}, kMicrobatch));
  EXPECT_NE(other.stage().output_gradients_of(0).front().raw(),
            other.stage()
                .outputs_of(Alone(0, other.stage().inputs_of(0).front(), 0).microbatch)
                .front()
                .raw());
}

}  // namespace
}  // namespace strata::nn::test::language_stage_test
