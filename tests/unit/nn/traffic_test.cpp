// What a trace says that a rank sends over its tensor and data groups is what it sends.
#include <algorithm>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "strata/nn/layer_trace.hpp"

#include "counting_communicator.hpp"
#include "in_process.hpp"
#include "language_bench.hpp"

namespace strata::nn::test::traffic_test {
namespace {

constexpr std::int64_t kMicrobatch = 2;
constexpr std::int64_t kContext = 8;
constexpr std::int64_t kVocabulary = 16;

struct Case {
  std::string name;
  std::vector<std::string> layers;
  Recompute recompute = Recompute::kNone;
  std::int64_t loss_pieces = 1;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

/// What a rank sends is what the trace of its layers says: of the one group that has ranks.
void expect_traced(const Model& model, const StageSpec& spec, const LayerSites& sites,
                   const CountingCommunicator& counting) {
  comm::TracedMessages traced;
  for (std::int64_t layer = spec.layers.begin; layer < spec.layers.end; ++layer) {
    const LayerTrace trace = trace_layer(model, layer, spec, sites, ops::Accumulate::kOverwrite);
    for (const auto* events : {&trace.forward, &trace.backward_input, &trace.backward_weight}) {
      traced += comm::sent(*events, grid::Axis::kTensor);
      traced += comm::sent(*events, grid::Axis::kData);
    }
  }
  EXPECT_EQ(counting.sent().messages, traced.messages);
  EXPECT_EQ(counting.sent().bytes, traced.bytes);
}

class StageTraffic : public testing::TestWithParam<Case> {};

template <typename T>
void expect_traffic(const Case& c, Placement rows, std::int64_t shards, std::int64_t ranks,
                    std::int64_t row_pieces = 1, DType shard_sums = DType::kFloat32) {
  const Model model = language_model(c.layers, kContext, kVocabulary, shards, rows);
  const Samples samples = language_samples(1, kMicrobatch * kContext, kVocabulary);
  comm::run_in_process_ranks(ranks, [&](comm::Communicator& world) {
    SCOPED_TRACE(fmt::format("rank {} of {}, {} shards, rows {}, {}", world.rank(), ranks, shards,
                             name_of(rows), name_of(kDTypeOf<T>)));
    CountingCommunicator counting(world);
    const comm::ProgressEngine engine;
    StageSpec spec = spec_of<T>({0, model.layer_count()}, kMicrobatch);
    spec.pass.recompute = c.recompute;
    spec.pass.row_pieces = row_pieces;
    spec.pass.shard_sums = shard_sums;
    spec.pass.loss_pieces = c.loss_pieces;
    spec.order = BackwardOrder::kFused;
    StageBench<T> bench(model, spec,
                        comm::ShardGroup(counting, engine, shards, comm::Summation::kInvariant));
    train(model, bench, samples);
    expect_traced(model, bench.spec(),
                  {.tensor = {.axis = grid::Axis::kTensor,
                              .rank = world.rank(),
                              .ranks = ranks,
                              .in_node = ranks}},
                  counting);
  });
}

TEST_P(StageTraffic, IsWhatIsSent) {
  for (const Placement rows : {Placement::kReplicated, Placement::kTokens}) {
    for (const std::int64_t ranks : {1, 2, 4}) {
      expect_traffic<float>(GetParam(), rows, 4, ranks);
      expect_traffic<BFloat16>(GetParam(), rows, ranks, ranks);
      expect_traffic<double>(GetParam(), rows, 4, ranks);
      expect_traffic<float>(GetParam(), rows, 4, ranks, 2);
      expect_traffic<BFloat16>(GetParam(), rows, 4, ranks, 1, DType::kBfloat16);
    }
  }
}

const std::string kAttention = "attention 4 dropout=0.1";
const std::string kGrouped = "attention 8 kv_heads=4 head_size=2 norm=rms_norm bias=off";

INSTANTIATE_TEST_SUITE_P(
    Models, StageTraffic,
    testing::Values(
        Case{"embedding_and_head", {"embedding 8", "head"}},
        Case{"gpt", {"embedding 8 positions=8", kAttention, "mlp 12", "layer_norm", "head"}},
        Case{"gpt_selective",
             {"embedding 8 positions=8", kAttention, "mlp 12", "layer_norm", "head"},
             Recompute::kSelective},
        Case{"llama_full",
             {"embedding 8", kGrouped, "mlp 12 swiglu norm=rms_norm bias=off", "rms_norm",
              "head tied=off"},
             Recompute::kFull},
        Case{"norms_of_all_heads", {"embedding 8", kGrouped + " qk_norm=width", "head"}},
        Case{"norms_of_all_heads_full",
             {"embedding 8", kGrouped + " qk_norm=width", "head"},
             Recompute::kFull},
        Case{"lora",
             {"embedding 8", "attention 4 lora=2", "mlp 12 swiglu lora=3 lora_products=up,down",
              "head"}},
        Case{"shared_heads",
             {"embedding 8", "attention 4 kv_heads=2 lora=2", "attention 4 kv_heads=1", "head"}},
        Case{"shared_heads_full",
             {"embedding 8", "attention 8 kv_heads=1 head_size=4 qk_norm=width", "head"},
             Recompute::kFull},
        Case{"loss_in_pieces", {"embedding 8", "mlp 12", "head"}, Recompute::kNone, 4},
        Case{"loss_in_pieces_recompute", {"embedding 8", "head"}, Recompute::kSelective, 2},
        Case{"without_norms",
             {"embedding 8", "attention 4 norm=none residual=off", "mlp 12 norm=none", "head"},
             Recompute::kSelective}),
    [](const auto& test) { return test.param.name; });

TEST(StageTrafficOfDense, IsWhatIsSent) {
  expect_traffic<float>({"dense",
                         {"embedding 8", "dense 12 relu parallel=column", "dropout 0.1",
                          "dense 8 parallel=row", "dense 16 parallel=column"}},
                        Placement::kReplicated, 4, 2);
}

TEST(StageTraffic, WeightGradientsAreComputedWhileInputGradientsAreSummed) {
  const Model model = language_model({"embedding 8", kAttention, "mlp 12", "layer_norm", "head"},
                                     kContext, kVocabulary, 2, Placement::kTokens);
  const Samples samples = language_samples(1, kMicrobatch * kContext, kVocabulary);
  comm::run_in_process_ranks(2, [&](comm::Communicator& world) {
    CountingCommunicator counting(world);
    const comm::ProgressEngine engine;
    StageSpec spec = spec_of<float>({0, model.layer_count()}, kMicrobatch);
    spec.order = BackwardOrder::kFused;
    StageBench<float> bench(model, spec,
                            comm::ShardGroup(counting, engine, 2, comm::Summation::kInvariant));
    const Alone alone(0, {std::span(samples.ids[0]), model.input_shape().prepended(kMicrobatch)},
                      0);
    bench.stage().forward(alone, Mode::kTraining);
    bench.stage().loss(alone.microbatch,
                       {std::span(samples.targets[0]), Shape{kMicrobatch * kContext}}, kMicrobatch,
                       0.25, Mode::kTraining);
    ArenaSink<float> sink(bench.layout().elements);
    std::vector<std::int64_t> made;
    counting.observe_waits(comm::Tag::kReduce, [&] {
      // What the sink holds before.
      made.push_back(std::ssize(sink.gradients()) - std::ranges::count(sink.gradients(), -77.0F));
    });
    bench.stage().backward_input(alone, sink);
    // The head's, the MLP's and attention's.
    ASSERT_EQ(made.size(), 3U);
    EXPECT_GT(made[0], 0);
    EXPECT_GT(made[1], made[0]);
    EXPECT_GT(made[2], made[1]);
  });
}

TEST(StageTraffic, MessagesOfAPieceOfRowsAreInFlightDuringTheProductsOfOthers) {
  const Model model = language_model({"embedding 8", "mlp 12", "head"}, kContext, kVocabulary, 2,
                                     Placement::kTokens);
  const Samples samples = language_samples(1, kMicrobatch * kContext, kVocabulary);
  // Two pieces of two layers' rows: both are sent before the first wait for either.
  for (const comm::Tag tag : {comm::Tag::kGather, comm::Tag::kReduce}) {
    comm::run_in_process_ranks(2, [&](comm::Communicator& world) {
      CountingCommunicator counting(world);
      const comm::ProgressEngine engine;
      StageSpec spec = spec_of<float>({0, model.layer_count()}, kMicrobatch);
      spec.pass.row_pieces = 2;
      StageBench<float> bench(model, spec,
                              comm::ShardGroup(counting, engine, 2, comm::Summation::kInvariant));
      std::vector<std::int64_t> sent;
      counting.observe_waits(tag, [&] { sent.push_back(counting.sent(tag).messages); });
      const Alone alone(0, {std::span(samples.ids[0]), model.input_shape().prepended(kMicrobatch)},
                        0);
      bench.stage().forward(alone, Mode::kTraining);
      EXPECT_EQ(sent, (std::vector<std::int64_t>{2, 2, 4, 4})) << static_cast<int>(tag);
    });
  }
}

constexpr std::int64_t kClasses = 3;

/// Puts numbers where a stage that is not the first gets its inputs.
template <typename T>
void receive_inputs(const Stage& stage, std::int64_t execution_index) {
  for (std::size_t i = 0; !stage.is_first() && i < stage.inputs_of(execution_index).size(); ++i) {
    const std::span<T> input = stage.inputs_of(execution_index)[i].template host<T>();
    const std::vector<T> values = numbers<T>(std::ssize(input), i);
    std::copy(values.begin(), values.end(), input.begin());
  }
}

/// Trains a stage of the layers from `begin` on with one microbatch of each lane, and compares what
/// each of the ranks that the lanes lie on sends with the trace.
template <typename T>
void expect_lane_traffic(const std::vector<std::string>& layers, std::int64_t begin,
                         std::int64_t lanes, std::int64_t ranks) {
  const Model model({.layers = layers,
                     .input_shape = {3, 4, 2},
                     .outputs = kClasses,
                     .seed = 3,
                     .step_microbatches = lanes,
                     .lanes = lanes});
  comm::run_in_process_ranks(ranks, [&](comm::Communicator& world) {
    SCOPED_TRACE(fmt::format("{} lanes, rank {} of {}, {}", lanes, world.rank(), ranks,
                             name_of(kDTypeOf<T>)));
    CountingCommunicator counting(world);
    const comm::ProgressEngine engine;
    comm::PartitionedGroup group(counting, engine, lanes);
    StageSpec spec = spec_of<T>({begin, model.layer_count()}, kMicrobatch);
    spec.pass.concurrent_lanes = group.own().count();
    StageBench<T> bench(model, spec, comm::ShardGroup(1), &group);
    Stage& stage = bench.stage();
    const std::vector<T> values = numbers<T>(kMicrobatch * model.input_shape().count(), 5);
    const ConstTensorView input{std::span(values), local_shape(model.layer(0).input(), spec.pass)};
    std::vector<Microbatch> concurrent;
    for (std::int64_t k = 0; k < spec.pass.concurrent_lanes; ++k) {
      concurrent.push_back({.number = k,
                            .execution_index = k,
                            .input = stage.is_first() ? input : ConstTensorView(),
                            .first_sample = (group.own().begin + k) * kMicrobatch});
      receive_inputs<T>(stage, k);
    }
    stage.forward(concurrent, Mode::kTraining);
    const std::vector<std::int64_t> labels{2, 0};
    for (const Microbatch& microbatch : concurrent) {
      stage.loss(microbatch, {std::span(labels), Shape{kMicrobatch}}, kMicrobatch, 0.25,
                 Mode::kTraining);
    }
    ArenaSink<Compute<T>> sink(bench.layout().elements);
    stage.backward_input(concurrent, sink);
    stage.backward_weight(concurrent, sink);
    expect_traced(model, bench.spec(),
                  {.data = {.rank = world.rank(), .ranks = ranks, .in_node = ranks}}, counting);
  });
}

struct LaneCase {
  std::string name;
  std::vector<std::string> layers;
  std::int64_t begin = 0;
};

void PrintTo(const LaneCase& c, std::ostream* out) {
  *out << c.name;
}

class LaneTraffic : public testing::TestWithParam<LaneCase> {};

TEST_P(LaneTraffic, IsWhatIsSent) {
  const LaneCase& c = GetParam();
  for (const std::int64_t lanes : {2, 4}) {
    for (const std::int64_t ranks : {1, 2}) {
      expect_lane_traffic<float>(c.layers, c.begin, lanes, ranks);
      expect_lane_traffic<BFloat16>(c.layers, c.begin, lanes, ranks);
    }
  }
}

const std::string kSync = "batch_norm sync=on";

INSTANTIATE_TEST_SUITE_P(
    Models, LaneTraffic,
    testing::Values(
        LaneCase{"behind_others",
                 {"conv 5 1", kSync + " relu", "conv 2 1", kSync, "flatten", "dense 3"}},
        LaneCase{"beside_one_of_its_own", {"conv 5 1", kSync, "batch_norm", "flatten", "dense 3"}},
        // Nobody needs the gradient of the model's input.
        LaneCase{"on_the_models_input", {kSync, "conv 2 1", kSync, "flatten", "dense 3"}},
        LaneCase{"in_a_shortcut_of_the_models_input",
                 {"residual", "conv 3 1", "shortcut", kSync, "end", "flatten", "dense 3"}},
        LaneCase{"on_the_models_input_in_a_later_stage",
                 {"residual", "conv 3 1", "shortcut", kSync, "end", "flatten", "dense 3"},
                 1},
        LaneCase{"first_of_a_later_stage", {"conv 5 1", kSync, "flatten", "dense 3"}, 1}),
    [](const auto& test) { return test.param.name; });

// A GPU's products read rows of zeros behind the head's weights where logits are padded.
TEST(Trace, CountsTheCopyOfAPaddedHead) {
  constexpr std::int64_t kWidth = 4;
  for (const auto& [vocabulary, bytes] :
       {std::pair<std::int64_t, std::int64_t>{13, 16 * kWidth * 2}, {16, 0}}) {
    const Model model = language_model({"embedding 4", "head"}, kContext, vocabulary, 1);
    StageSpec spec = spec_of<BFloat16>({0, model.layer_count()}, kMicrobatch);
    spec.pass.logit_multiple = 8;
    const LayerTrace trace = trace_layer(model, 1, spec, {}, ops::Accumulate::kOverwrite);
    for (const auto& [events, product] :
         {std::pair{&trace.forward, "matmul_nt"}, std::pair{&trace.backward_input, "matmul_nn"}}) {
      const auto found = std::ranges::find(
          *events, product, [](const comm::TraceEvent& event) { return event.work.name; });
      ASSERT_NE(found, events->end()) << product;
      EXPECT_EQ(found->work.scratch, bytes) << product << " of " << vocabulary;
    }
  }
}

}  // namespace
}  // namespace strata::nn::test::traffic_test
