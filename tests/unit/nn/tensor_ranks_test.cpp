// A model cut by feature gives the bits of one rank on every number of tensor ranks that divides
// its shards, with and without sequence parallelism (design law 1). Ranks are threads.
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "in_process.hpp"
#include "language_bench.hpp"

namespace strata::nn::test {
namespace {

constexpr std::int64_t kShards = 4;
constexpr std::int64_t kMicrobatch = 2;
constexpr std::int64_t kMicrobatches = 2;
constexpr std::int64_t kContext = 8;
// Divides by no number of shards.
constexpr std::int64_t kVocabulary = 13;

using Layers = std::vector<std::string>;

const Layers kGpt{"embedding 8 positions=8 dropout=0.1",
                  "attention 4 dropout=0.2",
                  "mlp 12 dropout=0.2",
                  "attention 11 head_size=2 rotary=100",
                  "mlp 12 relu norm=none",
                  "layer_norm",
                  "head"};
const Layers kLlama{"embedding 8",
                    "attention 8 kv_heads=4 head_size=2 rotary=1000 norm=rms_norm bias=no",
                    "mlp 12 swiglu norm=rms_norm bias=no dropout=0.2",
                    "mlp 8 gelu residual=no",
                    "rms_norm",
                    "head tied=no"};

/// Trains on `ranks` threads and calls check(what a rank found) on each, one at a time.
template <typename T, typename Check>
void on_ranks(const Model& model, const StageSpec& spec, const Samples& samples, std::int64_t ranks,
              const Check& check) {
  std::mutex mutex;
  comm::run_in_process_ranks(ranks, [&](comm::Communicator& world) {
    const comm::ProgressEngine engine;
    StageBench<T> bench(model, spec,
                        comm::ShardGroup(world, engine, kShards, comm::Summation::kInvariant));
    const Trained found = train(model, bench, samples);
    const std::scoped_lock lock(mutex);
    check(found);
  });
}

void expect_part_of(const Trained& part, const Trained& whole) {
  EXPECT_EQ(part.losses, whole.losses);
  EXPECT_TRUE(part.input_gradients == whole.input_gradients);
  ASSERT_FALSE(part.outputs.empty());
  for (const auto& [name, values] : part.outputs) {
    EXPECT_TRUE(values == whole.outputs.at(name)) << "output " << name;
  }
  for (const auto& [name, values] : part.gradients) {
    EXPECT_TRUE(values == whole.gradients.at(name)) << name;
  }
}

template <typename T>
void expect_the_bits_of_one_rank(const Layers& layers, Recompute recompute,
                                 const PassShape& numbers = {}) {
  const Samples samples = language_samples(kMicrobatches, kMicrobatch * kContext, kVocabulary);
  const Model replicated = language_model(layers, kContext, kVocabulary, kShards);
  StageSpec spec = spec_of<T>({0, replicated.layer_count()}, kMicrobatch);
  spec.pass.row_pieces = numbers.row_pieces;
  spec.pass.shard_sums = numbers.shard_sums;
  spec.pass.loss_pieces = numbers.loss_pieces;
  spec.order = numbers.loss_pieces == 1 ? BackwardOrder::kSplit : BackwardOrder::kFused;
  StageBench<T> bench(replicated, spec);
  const Trained whole = train(replicated, bench, samples);
  spec.pass.recompute = recompute;
  spec.order = recompute == Recompute::kNone ? spec.order : BackwardOrder::kFused;
  for (const Placement rows : {Placement::kReplicated, Placement::kTokens}) {
    const Model model = language_model(layers, kContext, kVocabulary, kShards, rows);
    for (const std::int64_t ranks : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format(
          "{} on {} ranks, rows {} in {} pieces, {} of the loss, sums of {}, recompute {}",
          name_of(kDTypeOf<T>), ranks, name_of(rows), numbers.row_pieces, numbers.loss_pieces,
          name_of(numbers.shard_sums), name_of(recompute)));
      std::size_t slices = 0;
      on_ranks<T>(model, spec, samples, ranks, [&](const Trained& found) {
        expect_part_of(found, whole);
        slices += found.gradients.size();
      });
      EXPECT_GE(slices, whole.gradients.size());
    }
  }
}

TEST(TensorRanks, GiveTheBitsOfOneForGpt) {
  expect_the_bits_of_one_rank<float>(kGpt, Recompute::kNone);
  expect_the_bits_of_one_rank<BFloat16>(kGpt, Recompute::kSelective);
  expect_the_bits_of_one_rank<float>(kGpt, Recompute::kNone, {.row_pieces = 2});
  expect_the_bits_of_one_rank<BFloat16>(kGpt, Recompute::kSelective, {.row_pieces = 4});
  expect_the_bits_of_one_rank<BFloat16>(kGpt, Recompute::kNone,
                                        {.row_pieces = 2, .shard_sums = DType::kBfloat16});
}

TEST(TensorRanks, GiveTheBitsOfOneForLlama) {
  expect_the_bits_of_one_rank<float>(kLlama, Recompute::kFull);
  expect_the_bits_of_one_rank<BFloat16>(kLlama, Recompute::kNone);
  expect_the_bits_of_one_rank<float>(kLlama, Recompute::kFull, {.row_pieces = 4});
  expect_the_bits_of_one_rank<BFloat16>(kLlama, Recompute::kNone, {.row_pieces = 2});
  expect_the_bits_of_one_rank<BFloat16>(kLlama, Recompute::kFull, {.shard_sums = DType::kBfloat16});
}

TEST(TensorRanks, GiveTheBitsOfOneForLossPieces) {
  for (const std::int64_t pieces : {4, 16}) {
    expect_the_bits_of_one_rank<float>(kGpt, Recompute::kSelective, {.loss_pieces = pieces});
    expect_the_bits_of_one_rank<BFloat16>(kGpt, Recompute::kNone, {.loss_pieces = pieces});
    expect_the_bits_of_one_rank<float>(kLlama, Recompute::kNone, {.loss_pieces = pieces});
    expect_the_bits_of_one_rank<BFloat16>(
        kLlama, Recompute::kFull,
        {.row_pieces = 2, .shard_sums = DType::kBfloat16, .loss_pieces = pieces});
  }
}

// The second stage of a network that a config spells.
template <typename T>
void expect_the_bits_of_one_rank(const Layers& layers) {
  constexpr std::int64_t kFeatures = 6;
  constexpr std::int64_t kClasses = 8;
  const Model model({.layers = layers,
                     .input_shape = Shape{kFeatures},
                     .outputs = kClasses,
                     .seed = 3,
                     .shards = kShards});
  const StageSpec spec = spec_of<T>({1, model.layer_count()}, kMicrobatch);
  const Samples samples = number_samples(kMicrobatches, kMicrobatch, kFeatures, kClasses);
  StageBench<T> bench(model, spec);
  const Trained whole = train(model, bench, samples);
  for (const std::int64_t ranks : {1, 2, 4}) {
    SCOPED_TRACE(fmt::format("{} on {} ranks", name_of(kDTypeOf<T>), ranks));
    on_ranks<T>(model, spec, samples, ranks,
                [&](const Trained& found) { expect_part_of(found, whole); });
  }
}

TEST(TensorRanks, GiveTheBitsOfOneForSpelledLayers) {
  const Layers whole_at_the_end{"tanh",        "dense 12 parallel=column",  "gelu",
                                "dropout 0.3", "dense 5 relu parallel=row", "dense 8"};
  const Layers split_at_the_end{"tanh", "dense 12 relu parallel=column", "dense 5 parallel=row",
                                "layer_norm", "dense 8 parallel=column"};
  expect_the_bits_of_one_rank<float>(whole_at_the_end);
  expect_the_bits_of_one_rank<BFloat16>(whole_at_the_end);
  expect_the_bits_of_one_rank<float>(split_at_the_end);
  expect_the_bits_of_one_rank<double>(split_at_the_end);
}

}  // namespace
}  // namespace strata::nn::test
