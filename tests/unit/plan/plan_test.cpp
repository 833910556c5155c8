#include "strata/plan/plan.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/plan/memory_fit.hpp"
#include "strata/plan/replication.hpp"
#include "strata/train/evaluation.hpp"

#include "allocations.hpp"
#include "error_of.hpp"

namespace strata::plan::plan_test {
namespace {

constexpr std::int64_t kContext = 8;
constexpr std::int64_t kVocabulary = 16;

/// Ten numbers a sample, in `classes` classes.
io::DatasetInfo numbers(std::int64_t samples, std::int64_t classes) {
  return {.path = "train.h5",
          .task = io::Task::kClassification,
          .samples = samples,
          .input_shape = {10},
          .input_dtype = DType::kFloat32,
          .target_shape = {},
          .classes = classes};
}

io::DatasetInfo tokens(std::int64_t context = kContext) {
  return {.path = "train.h5",
          .task = io::Task::kNextToken,
          .samples = 100,
          .input_shape = {context},
          .input_dtype = DType::kInt64,
          .target_shape = {context},
          .classes = kVocabulary};
}

config::RunConfig gpt() {
  config::RunConfig config;
  config.model.transformer = {
      .preset = nn::Preset::kGpt, .blocks = 1, .width = 16, .heads = 4, .context = kContext};
  config.batch.global = 8;
  config.batch.micro = 2;
  config.train.steps = 3;
  return config;
}

config::RunConfig gpt_on(const grid::Grid& grid) {
  config::RunConfig config = gpt();
  config.parallel.data = grid.data;
  config.parallel.pipeline = grid.pipeline;
  config.parallel.tensor = grid.tensor;
  return config;
}

void expect_refusal(const config::RunConfig& config, std::int64_t ranks, const VirtualGrid& stored,
                    const std::vector<std::string>& words, std::int64_t context = kContext) {
  const std::string text =
      test::error_of([&] { static_cast<void>(prepare(config, ranks, tokens(context), stored)); },
                     ExitCode::kUsage);
  for (const std::string& word : words) {
    EXPECT_THAT(text, testing::HasSubstr(word));
  }
}

TEST(Prepare, PlansWithoutAJob) {
  const Plan plan = prepare(gpt_on({0, 2, 2}), 0, tokens(), {});
  EXPECT_EQ(plan.grid, (grid::Grid{1, 2, 2}));
  EXPECT_EQ(plan.config.numerics.lanes, 4);  // one for each microbatch
  EXPECT_EQ(plan.config.numerics.shards, 2);
  EXPECT_EQ(plan.config.parallel.data, 1);
  EXPECT_EQ(plan.config.model.loss, nn::LossKind::kCrossEntropy);
  EXPECT_EQ(plan.microbatches, 4);
  EXPECT_EQ(plan.targets_per_sample, kContext);
  EXPECT_TRUE(is_language_model(plan));
  EXPECT_EQ(prepare(gpt_on({4, 1, 1}), 0, tokens(), {}).config.numerics.lanes, 4);
}

TEST(WithoutGrid, HasAnUpdateRule) {
  // Without one, nobody knows the tensors of a checkpoint.
  EXPECT_EQ(without_grid(gpt(), tokens()).config.optimizer.options.kind,
            optim::OptimizerKind::kAdamw);
}

TEST(Prepare, ChoosesWhatAnOptimizerLeavesOpen) {
  const auto planned = [](const std::function<void(config::RunConfig&)>& change) {
    config::RunConfig config;
    config.model.layers = {"dense 100 relu", "dense 10"};
    config.train.steps = 1000;
    change(config);
    return prepare(config, 1, numbers(1000, 10), {}).config;
  };
  const auto expect = [](const config::RunConfig& config, optim::OptimizerKind kind, double rate,
                         std::int64_t warmup) {
    EXPECT_EQ(config.optimizer.options.kind, kind);
    EXPECT_EQ(config.schedule.peak, rate);
    EXPECT_EQ(config.schedule.warmup_steps, warmup);
  };
  using optim::OptimizerKind;
  // 2,110 parameters: 6e-4 (124e6 / 2110)^(1/4) = 0.0093.
  expect(planned([](auto&) {}), OptimizerKind::kAdamw, 0.0093, 50);
  EXPECT_EQ(planned([](auto&) {}).optimizer.options.decay_scope, optim::DecayScope::kMatrices);
  expect(planned([](auto& config) { config.train.steps = 19; }), OptimizerKind::kAdamw, 0.0093, 0);
  expect(planned([](auto& config) { config.train.steps = 100'000; }), OptimizerKind::kAdamw, 0.0093,
         100);
  expect(planned([](auto& config) { config.schedule.peak = 0.002; }), OptimizerKind::kAdamw, 0.002,
         50);
  expect(planned([](auto& config) { config.schedule.warmup_steps = 0; }), OptimizerKind::kAdamw,
         0.0093, 0);
  expect(planned([](auto& config) { config.checkpoint.init = "base"; }), OptimizerKind::kAdamw,
         0.00093, 50);
  // Those that are trained count: 1,010.
  expect(planned([](auto& config) { config.optimizer.frozen = "dense1.*"; }), OptimizerKind::kAdamw,
         0.01, 50);
  expect(planned([](auto& config) {
           config.model.layers = {"dense 100000 relu", "dense 10"};
         }),
         OptimizerKind::kAdamw, 0.0017, 50);
  const auto chosen = [&](OptimizerKind kind, double momentum) {
    return planned([&](auto& config) {
      config.optimizer.kind = kind;
      config.optimizer.options.momentum = momentum;
    });
  };
  expect(chosen(OptimizerKind::kSgd, 0.0), OptimizerKind::kSgd, 0.1, 50);
  expect(chosen(OptimizerKind::kSgd, 0.9), OptimizerKind::kSgd, 0.01, 50);
  expect(chosen(OptimizerKind::kAdam, 0.0), OptimizerKind::kAdam, 0.0093, 50);
  expect(chosen(OptimizerKind::kAdagrad, 0.0), OptimizerKind::kAdagrad, 0.01, 50);
  expect(planned([](auto& config) {
           config.optimizer.kind = OptimizerKind::kAdamw;
           config.schedule.peak = 0.3;
         }),
         OptimizerKind::kAdamw, 0.3, 0);
}

TEST(RankPlan, CountsTheReceiveBuffersOfATiedTable) {
  const Plan plan = prepare(gpt_on({1, 2, 1}), 2, tokens(), {});
  const auto tied = [&](std::int64_t rank) {
    std::int64_t bytes = 0;
    for (const nn::MemoryItem& item : rank_plan(plan, rank).memory) {
      bytes += item.name == "tied gradient receive buffers" ? item.bytes : 0;
    }
    return bytes;
  };
  // The table in float32, in whole blocks, for four messages that are under way.
  const std::int64_t elements =
      (kVocabulary * 16 + optim::kBlock - 1) / optim::kBlock * optim::kBlock;
  EXPECT_EQ(tied(0), 4 * 4 * elements);
  EXPECT_EQ(tied(1), 0);
}

TEST(EvaluationConfig, HasAGridForEveryNumberOfRanks) {
  const VirtualGrid stored{.lanes = 4, .shards = 2, .microbatch = 2, .consent = true};
  std::int64_t batches = 0;
  const auto plan_for = [&](const grid::Grid& trained, std::int64_t ranks) {
    config::RunConfig given = gpt_on(trained);
    given.train.evaluate_batches = batches;
    const config::RunConfig config = evaluation_config(given, ranks, tokens(), stored);
    return prepare(config, ranks, tokens(), stored);
  };
  for (const std::int64_t ranks : {1, 2, 3, 4, 5, 6, 8, 12, 20, 40}) {
    const Plan plan = plan_for({2, 1, 1}, ranks);
    EXPECT_EQ(plan.grid.ranks(), ranks);
    EXPECT_EQ(plan.config.numerics.lanes, 4);
    EXPECT_EQ(plan.config.numerics.shards, 2);
  }
  EXPECT_EQ(plan_for({4, 2, 2}, 8).grid, (grid::Grid{2, 2, 2}));
  EXPECT_EQ(plan_for({4, 2, 2}, 2).grid, (grid::Grid{2, 1, 1}));
  // Other lanes have microbatches of the same samples.
  const Plan odd = plan_for({2, 1, 1}, 7);
  EXPECT_EQ(odd.grid, (grid::Grid{7, 1, 1}));
  EXPECT_EQ(odd.config.batch.micro, 2);
  // A limit counts global batches, which would be others.
  batches = 1;
  EXPECT_THAT(test::error_of(
                  [&] {
                    static_cast<void>(plan_for({2, 1, 1}, 7));
                  },
                  ExitCode::kUsage),
              testing::HasSubstr(
                  "no grid of 7 ranks fits: data must divide 4 lanes, tensor 2 shards, "
                  "and pipeline is at most 5 layers; launch 1 or 2 or 3 or 4 or 5 or 6 or 8"));
}

TEST(PlanText, LeavesOutMemoryThatNoStageTakes) {
  const Plan plan = prepare(gpt_on({1, 2, 1}), 2, tokens(), {});
  const std::string text = plan_text(plan);
  const std::string table = text.substr(text.find("memory per rank"));
  EXPECT_THAT(table, testing::ContainsRegex("\nactivation receive buffers +0 B"));  // of stage 0
  EXPECT_THAT(table, testing::Not(testing::ContainsRegex("  0 B +0 B\n")));
  EXPECT_THAT(table, testing::HasSubstr("\ntotal "));
}

TEST(PlanText, JoinsStagesThatAreAlike) {
  config::RunConfig config = gpt_on({1, 12, 1});
  config.model.transformer.blocks = 12;
  const Plan plan = prepare(config, 12, tokens(), {});
  const std::string text = plan_text(plan);
  const std::string table = text.substr(text.find("memory per rank"));
  EXPECT_THAT(table, testing::ContainsRegex("^memory per rank +stage 0 +stages 1-10 +stage 11\n"));
  EXPECT_THAT(table, testing::ContainsRegex("\nactivations .*iB to .*iB"));
  EXPECT_THAT(table, testing::ContainsRegex("\nweights +[0-9.]+ .?i?B +[0-9.]+ .?i?B +[0-9.]+"));
  EXPECT_THAT(table, testing::ContainsRegex("\ntraffic per rank and step +stage 0 +stages 1-10"));
}

TEST(Prepare, FillsTheJobWithReplicas) {
  const Plan plan = prepare(gpt_on({0, 2, 2}), 8, tokens(), {});
  EXPECT_EQ(plan.grid, (grid::Grid{2, 2, 2}));
  EXPECT_EQ(plan.config.numerics.lanes, 4);
  EXPECT_EQ(plan.microbatches, 2);
  expect_refusal(gpt_on({0, 2, 2}), 6, {}, {"6 ranks", "needs 4", "launch 4 or 8 ranks"});
}

TEST(Prepare, KeepsPipelineAndTensorOfTheCheckpointWhereTheRanksAllow) {
  const VirtualGrid stored{.lanes = 4, .shards = 2, .microbatch = 2, .pipeline = 2, .tensor = 2};
  const auto grid_for = [&](const grid::Grid& given, std::int64_t ranks, const VirtualGrid& from) {
    return prepare(gpt_on(given), ranks, tokens(), from).grid;
  };
  const grid::Grid automatic{0, 0, 0};
  EXPECT_EQ(grid_for(automatic, 16, stored), (grid::Grid{4, 2, 2}));
  EXPECT_EQ(grid_for(automatic, 4, stored), (grid::Grid{1, 2, 2}));
  EXPECT_EQ(grid_for(automatic, 2, stored), (grid::Grid{2, 1, 1}));
  EXPECT_EQ(grid_for(automatic, 3, stored), (grid::Grid{1, 3, 1}));
  EXPECT_EQ(grid_for({0, 0, 2}, 2, stored), (grid::Grid{1, 1, 2}));
  EXPECT_EQ(grid_for(automatic, 4, {}), (grid::Grid{4, 1, 1}));
  expect_refusal(gpt_on(automatic), 7, stored, {"7 ranks", "launch 4 or 8 ranks"});
  // Replicas must divide the lanes.
  expect_refusal(gpt_on({0, 2, 1}), 6, stored, {"parallel.data = 3", "launch 4 or 8 ranks"});
}

TEST(Prepare, TakesTheStoredVirtualGrid) {
  config::RunConfig config = gpt();
  config.batch.micro = 0;
  const Plan plan = prepare(config, 1, tokens(), {.lanes = 2, .shards = 4, .microbatch = 1});
  EXPECT_EQ(plan.config.numerics.lanes, 2);
  EXPECT_EQ(plan.config.numerics.shards, 4);
  EXPECT_EQ(plan.config.batch.micro, 1);
  EXPECT_EQ(plan.microbatches, 8);
  EXPECT_FALSE(plan.former);
  config.batch.micro = 2;
  expect_refusal(config, 1, {.lanes = 2, .shards = 4, .microbatch = 1},
                 {"batch.micro is 2", "made with 1", "leave it out"});
}

TEST(VirtualGrid, DefaultLanesLeaveRoomForReplicas) {
  struct Case {
    std::int64_t global;
    std::int64_t micro;    ///< given
    std::int64_t context;  ///< 0: samples without tokens
    device::DeviceKind device;
    std::vector<std::int64_t> replicas;  ///< which derive the same
    std::int64_t lanes;
    std::int64_t microbatch;
  };
  constexpr auto kCpu = device::DeviceKind::kCpu;
  constexpr auto kGpu = device::DeviceKind::kCuda;
  for (const Case& c : std::vector<Case>{{512, 0, 0, kCpu, {1, 2, 4, 8}, 8, 32},
                                         {256, 0, 0, kCpu, {1, 2, 4, 8}, 8, 32},
                                         {128, 0, 0, kCpu, {1, 2, 4}, 4, 32},
                                         {128, 0, 0, kCpu, {8}, 8, 16},
                                         {128, 0, 0, kGpu, {1, 2}, 2, 64},
                                         {128, 16, 0, kCpu, {1, 2, 4, 8}, 8, 16},
                                         {128, 64, 0, kCpu, {1, 2}, 2, 64},
                                         {32, 0, 0, kCpu, {1, 2, 4}, 4, 8},
                                         {16, 0, 0, kCpu, {1, 2}, 2, 8},
                                         {12, 0, 0, kCpu, {1}, 1, 12},
                                         {15, 0, 0, kCpu, {5}, 5, 3},
                                         {120, 0, 0, kCpu, {1, 2, 4}, 4, 30},
                                         {120, 0, 0, kCpu, {3, 6}, 6, 20},
                                         {512, 0, 0, kCpu, {16}, 16, 32},
                                         {32, 0, 64, kCpu, {1, 2, 4}, 4, 8},
                                         {16, 0, 1024, kCpu, {1, 2, 4, 8}, 8, 2},
                                         {48, 0, 1024, kGpu, {1, 2, 4}, 4, 12},
                                         {512, 0, 1024, kGpu, {1, 2, 4, 8}, 8, 16}}) {
    for (const std::int64_t replicas : c.replicas) {
      SCOPED_TRACE(fmt::format("{} samples on {} replicas", c.global, replicas));
      config::RunConfig config = gpt();
      config.model.transformer.context = c.context;
      if (c.context == 0) {
        config.model = {.layers = {"dense 4"}};
      }
      config.batch.global = c.global;
      config.batch.micro = c.micro;
      const Plan plan = prepare(config, replicas,
                                c.context == 0 ? numbers(8, 4) : tokens(c.context), {}, c.device);
      EXPECT_EQ(plan.config.numerics.lanes, c.lanes);
      EXPECT_EQ(plan.config.batch.micro, c.microbatch);
      EXPECT_THAT(plan_text(plan), testing::HasSubstr("can go on with "));
    }
  }
}

TEST(VirtualGrid, AnIslandHasLanesForReplicasAndAWorkerOneUnit) {
  config::RunConfig config = gpt();
  config.batch.global = 128;
  config.train.steps = 50;
  config.parallel.sync = config::Sync::kLocal;
  EXPECT_EQ(prepare(config, 2, tokens(), {}).config.numerics.lanes, 2 * 8);
  config.parallel.sync = config::Sync::kAsync;
  EXPECT_EQ(prepare(config, 2, tokens(), {}).config.numerics.lanes, 2);
  // Whose number a checkpoint counts.
  config.numerics.lanes = 4;
  expect_refusal(config, 2, {.lanes = 2, .shards = 1, .microbatch = 2},
                 {"numerics.lanes is 4", "made with 2"});
}

TEST(VirtualGrid, AnotherOneTakesConsent) {
  VirtualGrid stored{.lanes = 8, .shards = 1, .microbatch = 12, .loss_pieces = 1};
  config::RunConfig config = gpt();
  config.batch = {.global = 96, .micro = 0};
  expect_refusal(config, 3, stored, {"launch 2 or 4 ranks", "--numerics.lanes=3 (from there on"});
  EXPECT_THAT(plan_text(prepare(config, 2, tokens(), stored)),
              testing::HasSubstr("can go on with 1, 2, 4 or 8 replicas and 1 tensor rank, at any"));
  config.numerics.lanes = 3;
  expect_refusal(config, 3, stored,
                 {"made with 8", "leave it out", "give --numerics.lanes=3 on the command line"});
  stored.consent = true;
  const Plan lanes = prepare(config, 3, tokens(), stored);
  EXPECT_EQ(lanes.former, stored);
  EXPECT_EQ(virtual_grid_text(virtual_grid_of(lanes)), "3 lanes x 1 shard in microbatches of 8");
  EXPECT_THAT(plan_text(lanes), testing::HasSubstr("by consent, no longer 8 lanes x 1 shard in "
                                                   "microbatches of 12; can go on with 1 or 3 "));
  config.numerics.lanes = 0;
  config.parallel.tensor = 2;
  expect_refusal(config, 2, stored, {"--numerics.shards=2 (from there on"});
  config.numerics.shards = 2;
  const Plan shards = prepare(config, 2, tokens(), stored);
  EXPECT_EQ(shards.former, stored);
  EXPECT_EQ(virtual_grid_text(virtual_grid_of(shards)), "8 lanes x 2 shards in microbatches of 12");
  // With a microbatch of its own.
  config = gpt();
  config.batch = {.global = 96, .micro = 12};
  expect_refusal(config, 3, stored, {"--numerics.lanes=3 --batch.micro=8 ("});
  config.batch.micro = 4;
  config.numerics.lanes = 3;
  EXPECT_EQ(prepare(config, 3, tokens(), stored).config.batch.micro, 4);
  // The grid follows the lanes that were agreed to.
  config.parallel.data = config.parallel.pipeline = config.parallel.tensor = 0;
  EXPECT_EQ(prepare(config, 3, tokens(), stored).grid, (grid::Grid{3, 1, 1}));
}

TEST(Prepare, InFastModeHasAsManyLanesAndShardsAsRanks) {
  config::RunConfig config = gpt_on({2, 1, 2});
  config.numerics.mode = comm::Summation::kLibrary;
  // What a checkpoint was made with does not matter then.
  const Plan plan = prepare(config, 4, tokens(), {.lanes = 4, .shards = 1, .microbatch = 2});
  EXPECT_EQ(plan.config.numerics.lanes, 2);
  EXPECT_EQ(plan.config.numerics.shards, 2);
  config.numerics.lanes = 2;
  EXPECT_NO_THROW((void)prepare(config, 4, tokens(), {}));
}

TEST(Prepare, SharesTokenRowsOfItselfWhereTensorRanksCan) {
  struct Case {
    const char* name;
    std::int64_t tensor;
    int context;
    comm::Summation mode;
    std::optional<Switch> given;
    nn::Placement rows;
  };
  using comm::Summation;
  using nn::Placement;
  for (const Case& c : {
           Case{"can", 2, 8, Summation::kInvariant, std::nullopt, Placement::kTokens},
           Case{"off", 2, 8, Summation::kInvariant, Switch::kOff, Placement::kReplicated},
           Case{"one rank", 1, 8, Summation::kInvariant, std::nullopt, Placement::kReplicated},
           Case{"odd rows", 2, 5, Summation::kInvariant, std::nullopt, Placement::kReplicated},
           Case{"fast", 2, 8, Summation::kLibrary, std::nullopt, Placement::kReplicated},
       }) {
    config::RunConfig config = gpt_on({1, 1, c.tensor});
    config.model.transformer.context = c.context;
    config.batch.micro = 1;
    config.numerics.mode = c.mode;
    config.parallel.sequence = c.given;
    const Plan plan = prepare(config, c.tensor, tokens(c.context), {});
    EXPECT_EQ(plan.token_rows, c.rows) << c.name;
    // What a plan decides can be given again.
    EXPECT_EQ(prepare(plan.config, c.tensor, tokens(c.context), {}).token_rows, c.rows) << c.name;
  }
}

TEST(Prepare, SharesTokenRowsOfLayersThatAllow) {
  using nn::Placement;
  for (const auto& [layer, rows] :
       std::vector<std::pair<std::string, Placement>>{{"layer_norm", Placement::kTokens},
                                                      {"rms_norm", Placement::kTokens},
                                                      {"dropout 0.1", Placement::kTokens},
                                                      {"gelu", Placement::kTokens},
                                                      {"mlp 32 gelu", Placement::kTokens},
                                                      {"dense 16", Placement::kReplicated},
                                                      {"batch_norm", Placement::kReplicated}}) {
    SCOPED_TRACE(layer);
    config::RunConfig config = gpt_on({1, 1, 2});
    config.model.transformer = {.context = kContext};
    config.model.layers = {"embedding 16", "attention 4", layer, "head"};
    EXPECT_EQ(prepare(config, 2, tokens(), {}).token_rows, rows);
    config.parallel.sequence = Switch::kOn;
    EXPECT_EQ(try_prepare(config, 2, tokens(), {}, device::DeviceKind::kCpu).has_value(),
              rows == Placement::kTokens);
  }
}

TEST(GridsOf, HaveTheRanksAndKeepTheLimits) {
  const auto texts = [](std::int64_t ranks, const GridLimits& limits) {
    std::string text;
    for (const grid::Grid& grid : grids_of(ranks, limits)) {
      text += fmt::format("{}x{}x{} ", grid.data, grid.pipeline, grid.tensor);
    }
    return text;
  };
  EXPECT_EQ(texts(4, {.layers = 9}), "4x1x1 2x2x1 2x1x2 1x4x1 1x2x2 1x1x4 ");
  EXPECT_EQ(texts(4, {.lanes = 6, .shards = 2, .layers = 2}), "2x2x1 2x1x2 1x2x2 ");
  EXPECT_EQ(texts(12, {.layers = 9, .pipeline = 3, .tensor = 2}), "2x3x2 ");
  EXPECT_EQ(texts(7, {.lanes = 4, .shards = 2, .layers = 5}), "");
}

TEST(Prepare, RefusesSumsThatAreTooLongForTheirMessages) {
  constexpr std::int64_t kWide = 1 << 20;
  config::RunConfig config = gpt_on({1, 1, 4});
  config.model.transformer.width = kWide;
  config.model.transformer.hidden = 64;
  config.batch.micro = 1;
  // A rank sends 2^20 times a quarter of the rows, in float32.
  const auto with_context = [&](std::int64_t context) {
    config.model.transformer.context = context;
    static_cast<void>(prepare(config, 4, tokens(context), {}));
  };
  EXPECT_NO_THROW(with_context(2044));
  config.model.transformer.context = 2048;
  expect_refusal(config, 4, {}, {"layer embedding", "messages", "2147483647", "batch.micro"}, 2048);
  // The library's sum counts elements, of all rows.
  config.numerics.mode = comm::Summation::kLibrary;
  EXPECT_NO_THROW(with_context(2044));
  config.model.transformer.context = 2048;
  expect_refusal(config, 4, {}, {"layer embedding", "elements", "fast", "batch.micro"}, 2048);
  config.parallel.tensor = 2;
  config.model.transformer.context = 1024;
  EXPECT_NO_THROW((void)prepare(config, 2, tokens(1024), {}));
  config.parallel.sequence = Switch::kOn;
  expect_refusal(config, 2, {}, {"layer embedding", "messages"}, 1024);
}

TEST(Prepare, AllowsLargeTensorsThatNoTensorRankSends) {
  config::RunConfig config = gpt_on({1, 1, 2});
  config.model.transformer = {};
  config.model.layers = {"dense 1048576 relu", "dense 10"};
  config.batch.global = config.batch.micro = 8192;
  const io::DatasetInfo data = numbers(8192, 10);
  EXPECT_NO_THROW((void)prepare(config, 2, data, {}));
  config.model.layers = {"dense 64 parallel=column", "dense 1048576 parallel=row", "dense 10"};
  EXPECT_THAT(
      test::error_of([&] { static_cast<void>(prepare(config, 2, data, {})); }, ExitCode::kUsage),
      testing::HasSubstr("layer dense2"));
  config.parallel.tensor = 1;
  EXPECT_NO_THROW((void)prepare(config, 1, data, {}));
}

TEST(Prepare, ChoosesAMicrobatchByItsTokens) {
  const auto chosen = [](std::int64_t context, std::int64_t global) {
    config::RunConfig config = gpt();
    config.model.transformer.context = context;
    config.batch.global = global;
    config.batch.micro = 0;
    return prepare(config, 1, tokens(context), {}).config.batch.micro;
  };
  EXPECT_EQ(chosen(8, 64), 32);
  EXPECT_EQ(chosen(8, 6), 6);
  EXPECT_EQ(chosen(1024, 64), 4);
  EXPECT_EQ(chosen(1024, 6), 3);
  EXPECT_EQ(chosen(8192, 64), 1);
}

TEST(Prepare, TakesItsOwnSettingsAgain) {
  config::RunConfig config;
  config.model.layers = {"dense 4"};
  config.train.steps = 3;
  config.data.normalise = io::Normalise::kUnit;
  const io::DatasetInfo data = numbers(100, 4);
  EXPECT_NO_THROW((void)prepare(prepare(config, 1, data, {}).config, 1, data, {}));
}

TEST(AssumedData, NeedsAVocabulary) {
  config::RunConfig config = gpt();
  EXPECT_THAT(test::error_of([&] { static_cast<void>(assumed_data(config)); }, ExitCode::kUsage),
              testing::AllOf(testing::HasSubstr("data.train is empty"),
                             testing::HasSubstr("model.vocabulary")));
  config.model.transformer.vocabulary = 50;
  const io::DatasetInfo data = assumed_data(config);
  EXPECT_EQ(data.classes, 50);
  EXPECT_EQ(data.input_shape, Shape{kContext});
  EXPECT_EQ(prepare(config, 0, data, {}).model->output().shape, (Shape{kContext, 50}));
}

TEST(TiedStages, AreWhereTheTableIsOwnedAndUsed) {
  const auto stages = tied_stages(prepare(gpt_on({1, 3, 1}), 3, tokens(), {}));
  ASSERT_TRUE(stages.has_value());
  EXPECT_EQ(stages->owner, 0);
  EXPECT_EQ(stages->borrower, 2);
  const auto same = tied_stages(prepare(gpt(), 1, tokens(), {}));
  ASSERT_TRUE(same.has_value());
  EXPECT_EQ(same->owner, same->borrower);
  config::RunConfig untied = gpt();
  untied.model.transformer.tied = Switch::kOff;
  EXPECT_FALSE(tied_stages(prepare(untied, 1, tokens(), {})).has_value());
}

TEST(RankPlan, HasTheShardsAndTheOrderOfItsCoordinates) {
  config::RunConfig config = gpt_on({1, 2, 2});
  config.numerics.shards = 4;
  const Plan plan = prepare(config, 4, tokens(), {});
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const RankPlan found = rank_plan(plan, rank);
    EXPECT_EQ(found.coordinates, plan.grid.coordinates_of(rank));
    EXPECT_EQ(found.chunks.front().pass.shards.count, 4);
    EXPECT_EQ(found.chunks.front().pass.shards.own,
              (grid::Range{2 * found.coordinates.tensor, 2 * found.coordinates.tensor + 2}));
    EXPECT_EQ(found.chunks.front().order, nn::BackwardOrder::kSplit);
    EXPECT_EQ(found.loaded_parts,
              found.coordinates.pipeline == 0 ? io::Parts::kInputs : io::Parts::kTargets);
  }
  EXPECT_EQ(rank_plan(prepare(gpt(), 1, tokens(), {}), 0).chunks.front().order,
            nn::BackwardOrder::kFused);
  config.train.recompute = nn::Recompute::kSelective;
  EXPECT_EQ(rank_plan(prepare(config, 4, tokens(), {}), 0).chunks.front().order,
            nn::BackwardOrder::kFused);
}

// Two stages of two tensor ranks; 4 microbatches of 2 x 8 rows; sums and copies of rows x 16
// floats are 1024 bytes, of which a rank sends half in one message.
TEST(RankPlan, CountsTheMessagesOfAStep) {
  config::RunConfig config = gpt_on({1, 2, 2});
  config.parallel.split = "embedding, norm";
  config.parallel.sequence = Switch::kOff;
  const auto lines_of = [](const config::RunConfig& run, std::int64_t rank) {
    std::vector<std::string> lines;
    const Plan plan = prepare(run, 4, tokens(), {});
    for (const Traffic& traffic : traffic_of(plan, rank_plan(plan, rank))) {
      lines.push_back(fmt::format("{} messages, {} bytes", traffic.messages, traffic.bytes));
    }
    return lines;
  };
  constexpr int kMicrobatches = 4;
  const auto line = [](int messages, int bytes) {
    return fmt::format("{} messages, {} bytes", messages, bytes);
  };
  // The slice of the table, 8 ids of 16 floats, takes a block of 1024 elements.
  const std::string tied = line(1, 1024 * 4);
  const std::string nothing = line(0, 0);
  // An all-reduce of the embedding's rows, and two of each sublayer, are two messages each.
  EXPECT_EQ(lines_of(config, 0),
            (std::vector<std::string>{line(kMicrobatches, kMicrobatches * 1024),
                                      line(kMicrobatches * 10, kMicrobatches * 10 * 512), nothing,
                                      tied}));
  // The all-reduce of the head's input gradient; the parts of the loss, 4 floats for each row and
  // shard.
  const int loss_bytes = 16 * 4 * 4;
  EXPECT_EQ(lines_of(config, 2),
            (std::vector<std::string>{
                line(kMicrobatches, kMicrobatches * 1024),
                line(kMicrobatches * 3, kMicrobatches * (2 * 512 + loss_bytes)), nothing, tied}));
  config.parallel.sequence = Switch::kOn;
  // Half of the rows cross the stages. A reduce-scatter and a gather stand for every all-reduce;
  // each sublayer gathers the gradients of its norm, 2 x 16 floats a shard.
  const int norm_bytes = 2 * 16 * 4;
  EXPECT_EQ(
      lines_of(config, 1),
      (std::vector<std::string>{
          line(kMicrobatches, kMicrobatches * 512),
          line(kMicrobatches * 12, kMicrobatches * (10 * 512 + 2 * norm_bytes)), nothing, tied}));
  EXPECT_EQ(lines_of(config, 3),
            (std::vector<std::string>{
                line(kMicrobatches, kMicrobatches * 512),
                line(kMicrobatches * 4, kMicrobatches * (2 * 512 + norm_bytes + loss_bytes)),
                nothing, tied}));
}

// Four chunks on two stages: embedding, attention, mlp, and norm with the head.
TEST(RankPlan, SumsItsChunks) {
  struct Case {
    pipeline::ScheduleKind schedule;
    std::int64_t loss_stage;
    std::vector<io::Parts> parts;
    int crossings;  ///< of a microbatch, that a stage sends
  };
  const std::vector<Case> cases{
      {pipeline::ScheduleKind::kZbV, 0, {io::Parts::kBoth}, 2},
      {pipeline::ScheduleKind::kInterleaved, 1, {io::Parts::kInputs, io::Parts::kTargets}, 3}};
  config::RunConfig config = gpt_on({1, 2, 1});
  config.parallel.split = "0, 1, 2, 3";
  for (const Case& c : cases) {
    SCOPED_TRACE(name_of(c.schedule));
    config.parallel.schedule = c.schedule;
    const Plan plan = prepare(config, 2, tokens(), {});
    EXPECT_EQ(loss_stage(plan), c.loss_stage);
    ASSERT_TRUE(tied_stages(plan).has_value());
    EXPECT_EQ(tied_stages(plan)->owner, 0);
    EXPECT_EQ(tied_stages(plan)->borrower, c.loss_stage);
    constexpr int kMicrobatches = 4;
    for (std::int64_t stage = 0; stage < 2; ++stage) {
      const RankPlan rank = rank_plan(plan, stage);
      EXPECT_EQ(rank.loads, stage < std::ssize(c.parts));
      if (rank.loads) {
        EXPECT_EQ(rank.loaded_parts, c.parts[static_cast<std::size_t>(stage)]);
      }
      const Traffic crossing = traffic_of(plan, rank).front();
      EXPECT_EQ(crossing.messages, c.crossings * kMicrobatches);
      EXPECT_EQ(crossing.bytes, c.crossings * kMicrobatches * 1024);
      ASSERT_EQ(rank.chunks.size(), 2U);
      const std::span<const nn::StageSpec> chunks(rank.chunks);
      const auto first = nn::Stage::memory(*plan.model, chunks.first(1));
      const auto second = nn::Stage::memory(*plan.model, chunks.last(1));
      const std::set<std::string> of_a_pass = {"recomputed activations", "shared gradient buffers",
                                               "workspace"};
      for (std::size_t i = 0; i < first.size(); ++i) {
        const auto row = std::ranges::find(rank.memory, first[i].name, &nn::MemoryItem::name);
        ASSERT_NE(row, rank.memory.end()) << first[i].name;
        EXPECT_EQ(row->bytes, of_a_pass.contains(first[i].name)
                                  ? std::max(first[i].bytes, second[i].bytes)
                                  : first[i].bytes + second[i].bytes)
            << first[i].name;
      }
    }
  }
}

TEST(Plan, AutomaticBackwardIsFusedWhereOnlyThatFits) {
  struct Case {
    std::optional<nn::BackwardOrder> backward;
    pipeline::ScheduleKind schedule;
    bool split_fits;
    bool fused_fits;
    nn::BackwardOrder becomes;
  };
  using enum nn::BackwardOrder;
  for (const Case& c : std::vector<Case>{
           {std::nullopt, pipeline::ScheduleKind::k1f1b, true, true, kSplit},
           {std::nullopt, pipeline::ScheduleKind::k1f1b, false, true, kFused},
           {std::nullopt, pipeline::ScheduleKind::k1f1b, false, false, kSplit},
           {std::nullopt, pipeline::ScheduleKind::kZbH1, false, true, kSplit},
           {nn::BackwardOrder::kSplit, pipeline::ScheduleKind::k1f1b, false, true, kSplit},
       }) {
    SCOPED_TRACE(fmt::format("{} {} {}", name_of(c.schedule), c.split_fits, c.fused_fits));
    config::RunConfig config = gpt_on({1, 2, 1});
    config.parallel.backward = c.backward;
    config.parallel.schedule = c.schedule;
    const Plan plan =
        with_fitting_defaults(prepare(config, 2, tokens(), {}), {}, [&](const Plan& candidate) {
          return candidate.backward == kSplit ? c.split_fits : c.fused_fits;
        });
    EXPECT_EQ(plan.backward, c.becomes);
    EXPECT_EQ(plan.config.parallel.backward, c.backward);
    if (c.becomes == kFused) {
      config.parallel.backward = nn::BackwardOrder::kFused;
      EXPECT_EQ(device_bytes(rank_plan(plan, 0)),
                device_bytes(rank_plan(prepare(config, 2, tokens(), {}), 0)));
    }
  }
}

TEST(Plan, NodesHoldWholeReplicasAndCarryTheirShareOfTheTraffic) {
  struct Case {
    grid::Grid grid;
    std::int64_t node_ranks;
    std::int64_t replicas;  // 0: refused
  };
  for (const Case& c : std::vector<Case>{{{8, 1, 1}, 0, 1},
                                         {{8, 1, 1}, 1, 1},
                                         {{8, 1, 1}, 2, 2},
                                         {{8, 1, 1}, 4, 4},
                                         {{8, 1, 1}, 8, 1},
                                         {{8, 1, 1}, 16, 1},
                                         {{8, 1, 1}, 3, 0},
                                         {{8, 2, 2}, 4, 2},
                                         {{8, 1, 4}, 2, 1},
                                         {{8, 1, 4}, 4, 1},
                                         {{8, 1, 4}, 8, 2},
                                         {{8, 1, 4}, 6, 0},
                                         {{8, 1, 2}, 6, 0},
                                         {{1, 2, 1}, 2, 1}}) {
    SCOPED_TRACE(fmt::format("{}, nodes of {}", c.grid.text(), c.node_ranks));
    config::RunConfig config = gpt_on(c.grid);
    config.parallel.node_ranks = c.node_ranks;
    config.batch.micro = 1;
    if (c.replicas == 0) {
      expect_refusal(config, c.grid.ranks(), {}, {"parallel.node_ranks", "whole number of"});
      continue;
    }
    const Plan plan = prepare(config, c.grid.ranks(), tokens(), {});
    EXPECT_EQ(plan.node_replicas, c.replicas);
    config.parallel.node_ranks = 1;
    const auto sent = [](const Plan& of, const std::string& where) {
      // Slices are as even as whole blocks allow: those of all ranks add up.
      double bytes = 0.0;
      for (std::int64_t r = 0; r < of.grid.ranks(); ++r) {
        const std::vector<Traffic> all = traffic_of(of, rank_plan(of, r));
        const auto row = std::ranges::find(all, "gradients and weights, " + where, &Traffic::name);
        bytes += row == all.end() ? 0.0 : row->bytes;
      }
      return bytes;
    };
    const double flat = sent(prepare(config, c.grid.ranks(), tokens(), {}), "between replicas");
    EXPECT_NEAR(
        sent(plan, "between replicas") + sent(plan, "inside a node") + sent(plan, "between nodes"),
        flat, 1e-6 * flat);
    if (c.replicas > 1) {
      const auto nodes = static_cast<double>(c.grid.data / c.replicas);
      EXPECT_NEAR(sent(plan, "between nodes"),
                  flat * (nodes - 1.0) / static_cast<double>(c.grid.data - 1), 1e-6 * flat);
    }
  }
}

TEST(Plan, DefaultMicrobatchShrinksUntilItFits) {
  constexpr std::int64_t kLaneSamples = 24;
  constexpr std::int64_t kMostFitting = 5;
  const auto chosen = [](std::int64_t given, const VirtualGrid& stored, device::DeviceKind device) {
    config::RunConfig config = gpt_on({1, 1, 1});
    config.batch.global = kLaneSamples;
    config.batch.micro = given;
    const Plan plan = with_fitting_defaults(
        prepare(config, 1, tokens(), stored, device), stored,
        [](const Plan& candidate) { return candidate.config.batch.micro <= kMostFitting; });
    EXPECT_EQ(plan.microbatches, kLaneSamples / plan.config.batch.micro);
    return plan.config.batch.micro;
  };
  EXPECT_EQ(chosen(0, {}, device::DeviceKind::kCuda), 4);
  EXPECT_EQ(chosen(12, {}, device::DeviceKind::kCuda), 12);
  EXPECT_EQ(chosen(0, {.lanes = 1, .shards = 1, .microbatch = 8}, device::DeviceKind::kCuda), 8);
}

TEST(Plan, DefaultLanesBecomeFewerBeforeTheMicrobatchDoes) {
  const auto chosen = [](std::int64_t data, std::int64_t given, std::int64_t most_lanes,
                         std::int64_t most_micro) {
    config::RunConfig config = gpt_on({data, 1, 1});
    config.batch = {.global = 512, .micro = 0};
    config.numerics.lanes = given;
    const Plan plan =
        with_fitting_defaults(prepare(config, data, tokens(), {}, device::DeviceKind::kCuda), {},
                              [&](const Plan& candidate) {
                                return candidate.config.numerics.lanes <= most_lanes &&
                                       candidate.config.batch.micro <= most_micro;
                              });
    return std::pair(plan.config.numerics.lanes, plan.config.batch.micro);
  };
  EXPECT_EQ(chosen(1, 0, 8, 64), std::pair(std::int64_t{8}, std::int64_t{64}));
  EXPECT_EQ(chosen(1, 0, 3, 64), std::pair(std::int64_t{2}, std::int64_t{64}));
  EXPECT_EQ(chosen(2, 0, 3, 20), std::pair(std::int64_t{2}, std::int64_t{16}));
  // Given ones stay; a plan that does not fit is returned as it was.
  EXPECT_EQ(chosen(1, 4, 3, 64), std::pair(std::int64_t{4}, std::int64_t{64}));
}

TEST(Plan, DefaultMicrobatchIsLargerOnGpus) {
  const auto chosen = [](std::int64_t samples, std::int64_t context, device::DeviceKind device) {
    config::RunConfig config = gpt_on({1, 1, 1});
    config.model.transformer.context = context;
    config.batch.global = samples;
    config.batch.micro = 0;
    return prepare(config, 1, tokens(context), {}, device).config.batch.micro;
  };
  EXPECT_EQ(chosen(96, kContext, device::DeviceKind::kCpu), 32);
  EXPECT_EQ(chosen(96, kContext, device::DeviceKind::kCuda), 48);
  EXPECT_EQ(chosen(48, 1024, device::DeviceKind::kCpu), 3);    // of 8 lanes; of one it would be 4
  EXPECT_EQ(chosen(48, 1024, device::DeviceKind::kCuda), 12);  // of 4 lanes; of one it would be 16
}

TEST(Plan, LossPiecesAreOfTheConfigAndNotOfTheGrid) {
  // A vocabulary much larger than the width, and 2 x 4,096 tokens a microbatch.
  constexpr std::int64_t kLong = 1024;
  const auto pieces_of = [](config::RunConfig config, const VirtualGrid& stored = {}) {
    config.model.transformer.context = kLong;
    return prepare(config, config.parallel.data * config.parallel.pipeline * config.parallel.tensor,
                   tokens(kLong), stored)
        .config.numerics.loss_pieces;
  };
  const auto large = [](const grid::Grid& grid) {
    config::RunConfig config = gpt_on(grid);
    config.model.transformer.vocabulary = 4000;
    config.numerics.lanes = 1;
    config.numerics.shards = 2;
    config.batch.micro = 8;
    return config;
  };
  for (const grid::Grid& grid : {grid::Grid{1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 3, 2}}) {
    for (const nn::Recompute recompute : {nn::Recompute::kNone, nn::Recompute::kFull}) {
      config::RunConfig config = large(grid);
      config.train.recompute = recompute;
      EXPECT_EQ(pieces_of(config), 2) << grid.text();
    }
  }
  config::RunConfig config = large({1, 1, 1});
  config.batch.micro = 4;  // less than two pieces of 4,096 tokens
  EXPECT_EQ(pieces_of(config), 1);
  config.batch.micro = 8;
  config.model.transformer.vocabulary = 16;
  EXPECT_EQ(pieces_of(config), 1);
  // A checkpoint fixes them.
  const VirtualGrid whole{.lanes = 1, .shards = 2, .microbatch = 8, .loss_pieces = 1};
  EXPECT_EQ(pieces_of(large({1, 1, 1}), whole), 1);
  config.batch.micro = 8;
  config.numerics.loss_pieces = 2;
  expect_refusal(config, 1, whole, {"numerics.loss_pieces is 2", "was made with 1"});
}

TEST(Plan, LossPiecesFuseTheBackwardPassAndFollowTheMicrobatch) {
  config::RunConfig config = gpt_on({1, 2, 1});
  config.numerics.loss_pieces = 2;
  EXPECT_EQ(prepare(config, 2, tokens(), {}).backward, nn::BackwardOrder::kFused);

  config = gpt_on({1, 1, 1});
  config.model.transformer.context = 1024;
  config.model.transformer.vocabulary = 4000;
  config.batch = {.global = 32, .micro = 0};
  config.numerics.lanes = 1;
  const Plan plan = with_fitting_defaults(
      prepare(config, 1, tokens(1024), {}, device::DeviceKind::kCuda), {},
      [](const Plan& candidate) { return candidate.config.batch.micro <= 8; });
  EXPECT_EQ(plan.config.batch.micro, 8);
  EXPECT_EQ(plan.config.numerics.loss_pieces, 2);
}

config::RunConfig local_gpt(std::int64_t islands) {
  config::RunConfig config = gpt();
  config.batch.global = 24;
  config.batch.micro = 1;
  config.train.steps = 12;
  config.numerics.lanes = 12;
  config.parallel.sync = config::Sync::kLocal;
  config.parallel.islands = islands;
  config.local.steps = 4;
  return config;
}

// Every sample of a step belongs to one microbatch of one island, on every grid.
TEST(Local, IslandsCoverTheBatch) {
  struct Case {
    std::int64_t islands;
    grid::Grid grid;  ///< replicas as asked for, without islands
    grid::Grid resolved;
  };
  for (const Case& c : {Case{4, {1, 1, 1}, {1, 1, 1, 1}}, Case{4, {2, 1, 1}, {1, 1, 1, 2}},
                        Case{4, {4, 2, 1}, {1, 2, 1, 4}}, Case{2, {4, 1, 2}, {2, 1, 2, 2}},
                        Case{6, {3, 1, 1}, {1, 1, 1, 3}}, Case{3, {12, 1, 1}, {4, 1, 1, 3}},
                        Case{0, {4, 1, 1}, {1, 1, 1, 4}}}) {
    SCOPED_TRACE(fmt::format("{} islands on {}", c.islands, c.grid.text()));
    config::RunConfig config = local_gpt(c.islands);
    config.parallel.data = c.grid.data;
    config.parallel.pipeline = c.grid.pipeline;
    config.parallel.tensor = c.grid.tensor;
    const Plan plan = prepare(config, c.grid.ranks(), tokens(), {});
    EXPECT_EQ(plan.grid, c.resolved);
    EXPECT_EQ(plan.config.parallel.data, c.grid.data);
    EXPECT_EQ(plan.parts, c.islands == 0 ? c.grid.data : c.islands);
    EXPECT_EQ(plan.parts_per_rank * plan.grid.islands, plan.parts);
    std::vector<int> seen(24, 0);
    for (std::int64_t rank = 0; rank < plan.grid.ranks(); ++rank) {
      const RankPlan found = rank_plan(plan, rank);
      if (found.coordinates.pipeline > 0 || found.coordinates.tensor > 0) {
        continue;
      }
      EXPECT_EQ(found.own_parts.begin, found.coordinates.islands * plan.parts_per_rank);
      for (std::size_t m = 0; m < found.offsets.size(); ++m) {
        ++seen.at(static_cast<std::size_t>(found.offsets[m]));
        // A part of the batch for each island, in order.
        EXPECT_EQ(found.offsets[m] / part_batch(plan),
                  found.own_parts.begin + static_cast<std::int64_t>(m) / plan.microbatches);
      }
    }
    EXPECT_EQ(seen, std::vector<int>(24, 1));
  }
}

TEST(Local, AJobHasTheSamplesOfItsIsland) {
  std::vector<int> seen(24, 0);
  for (std::int64_t island = 0; island < 3; ++island) {
    config::RunConfig config = local_gpt(3);
    config.parallel.island_of = "meet";
    config.parallel.island = island;
    const Plan plan = prepare(config, 2, tokens(), {});
    EXPECT_EQ(plan.grid, (grid::Grid{2, 1, 1}));
    EXPECT_EQ(plan.config.checkpoint.every, config.local.steps);
    EXPECT_EQ(job_batch(plan), 8);
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      for (const std::int64_t offset : rank_plan(plan, rank).offsets) {
        ++seen.at(static_cast<std::size_t>(offset));
        EXPECT_EQ(offset / 8, island);
      }
    }
  }
  EXPECT_EQ(seen, std::vector<int>(24, 1));
}

TEST(Local, FragmentsCoverTheLayers) {
  for (std::int64_t fragments = 1; fragments <= 4; ++fragments) {
    config::RunConfig config = local_gpt(2);
    config.local.fragments = fragments;
    const Plan plan = prepare(config, 1, tokens(), {});
    ASSERT_EQ(std::ssize(plan.fragments), fragments);
    std::int64_t next = 0;
    for (const grid::Range& fragment : plan.fragments) {
      EXPECT_EQ(fragment.begin, next);
      EXPECT_GT(fragment.count(), 0);
      next = fragment.end;
    }
    EXPECT_EQ(next, plan.model->layer_count());
    EXPECT_EQ(islands_differ(plan), fragments > 1);
  }
}

TEST(Replication, DividesABatchAndSaysWhatIsReproducible) {
  struct Case {
    config::Sync sync;
    std::int64_t parts;
    std::int64_t per_rank;
    bool reproducible;
  };
  for (const Case& c : {Case{config::Sync::kStep, 1, 1, true},
                        {config::Sync::kLocal, 4, 2, true},
                        {config::Sync::kAsync, 12, 6, false}}) {
    SCOPED_TRACE(name_of(c.sync));
    config::RunConfig config = local_gpt(c.sync == config::Sync::kLocal ? 4 : 0);
    config.parallel.sync = c.sync;
    config.local.steps = c.sync == config::Sync::kLocal ? config.local.steps : 50;
    config.parallel.data = 2;
    const Plan plan = prepare(config, 2, tokens(), {});
    EXPECT_EQ(plan.parts, c.parts);
    EXPECT_EQ(plan.parts_per_rank, c.per_rank);
    EXPECT_EQ(job_batch(plan), config.batch.global);
    EXPECT_EQ(rank_plan(plan, 1).own_parts.end, c.parts);
    EXPECT_EQ(replication_of(plan).traits(plan).reproducible(), c.reproducible);
  }
}

TEST(Local, KeepsTheIslandsOfTheCheckpoint) {
  config::RunConfig config = local_gpt(2);
  expect_refusal(config, 1, {.lanes = 12, .shards = 1, .microbatch = 1, .parts = 4},
                 {"parallel.islands is 2", "made with 4"});
}

TEST(Local, ListsMemoryTrafficAndRounds) {
  config::RunConfig config = local_gpt(4);
  config.optimizer.kind = optim::OptimizerKind::kSgd;
  config.parallel.data = 2;
  config.local.fragments = 2;
  config.local.delay = 1;
  config.local.exchange = ops::Packing::kInt4;
  const Plan plan = prepare(config, 2, tokens(), {});
  const RankPlan rank = rank_plan(plan, 1);
  const auto bytes = [&](const std::string& name) {
    const auto row = std::ranges::find(rank.memory, name, &nn::MemoryItem::name);
    return row == rank.memory.end() ? -1 : row->bytes;
  };
  const std::int64_t owned = rank.owned().elements();
  // Outer weights, momentum, and errors of two islands and of their sum.
  EXPECT_EQ(bytes("outer weights and momentum"), 5 * owned * 4);
  EXPECT_GT(bytes("exchange of islands"), 0);
  EXPECT_EQ(bytes("islands not in use"), 2 * island_slot_bytes(plan, rank));
  EXPECT_EQ(island_slot_bytes(plan, rank), owned * 4);
  // Differences of 2 islands and a sum, of half of the weights each, in 68 bytes for 128 numbers.
  const Traffic traffic = traffic_of(plan, rank).back();
  EXPECT_EQ(traffic.name, "differences and averages, between islands");
  EXPECT_NEAR(traffic.bytes, 3.0 * static_cast<double>(owned) / 2.0 * 68.0 / 128.0 / 4.0, 1024.0);
  EXPECT_EQ(traffic.messages, 2.0 * 3.0 / 4.0);
  const std::string text = plan_text(plan);
  EXPECT_THAT(text, testing::HasSubstr("2 islands x 1 data"));
  EXPECT_THAT(text, testing::HasSubstr("islands: 4, 2 on a rank; averaged in rounds of 4 steps, in "
                                       "2 fragments, as int4; an average arrives after 1 further "
                                       "step\n"));
  EXPECT_THAT(text, testing::HasSubstr("24 samples = 4 islands x 1 replica x 6 microbatches x 1"));
  // Islands train in turns, and gather their weights once more when they are averaged.
  config.parallel.data = 1;
  config.parallel.islands = 2;
  config.parallel.pipeline = 2;
  const Plan alone = prepare(config, 2, tokens(), {});
  config.parallel.sync = config::Sync::kStep;
  config.parallel.islands = 0;
  config.local = {};
  const Plan synchronous = prepare(config, 2, tokens(), {});
  for (std::int64_t stage = 0; stage < 2; ++stage) {
    const auto local = traffic_of(alone, rank_plan(alone, stage));
    const auto step = traffic_of(synchronous, rank_plan(synchronous, stage));
    EXPECT_EQ(local.front().bytes, step.front().bytes);
    EXPECT_EQ(local.at(3).bytes, step.at(3).bytes * 2.0 * (stage == 0 ? 1.5 : 1.0));
    EXPECT_EQ(local.back().bytes, 0.0);
  }
}

TEST(PlanItems, AreEqualForEqualPlansAndNameWhatDiffers) {
  const auto items = [](const config::RunConfig& config) {
    return plan_items(prepare(config, 0, tokens(), {}), "the same text");
  };
  const auto differing = [&](const config::RunConfig& config) {
    std::vector<std::string> names;
    const std::vector<comm::PlanItem> a = items(gpt_on({1, 2, 2}));
    const std::vector<comm::PlanItem> b = items(config);
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].hash != b[i].hash) {
        names.push_back(a[i].name);
      }
    }
    return names;
  };
  EXPECT_TRUE(differing(gpt_on({1, 2, 2})).empty());
  EXPECT_THAT(differing(gpt_on({1, 2, 1})), testing::Contains("grid"));
  config::RunConfig gpipe = gpt_on({1, 2, 2});
  gpipe.parallel.schedule = pipeline::ScheduleKind::kGpipe;
  EXPECT_EQ(differing(gpipe), std::vector<std::string>{"schedule"});
  config::RunConfig longer = gpt_on({1, 2, 2});
  longer.train.steps = 4;
  EXPECT_EQ(differing(longer), std::vector<std::string>{"length"});
}

TEST(PlanText, TakesNoMoreThanItsSize) {
  if (strata::test::own_allocations().count == 0) {
    GTEST_SKIP() << "a sanitizer's operator new";
  }
  struct Axis {
    const char* name;
    std::function<void(config::RunConfig&, std::int64_t)> set;
    std::int64_t size;
  };
  const std::vector<Axis> axes{{"replicas",
                                [](config::RunConfig& config, std::int64_t n) {
                                  config.parallel.data = config.batch.global =
                                      config.numerics.lanes = n;
                                },
                                512},
                               {"islands",
                                [](config::RunConfig& config, std::int64_t n) {
                                  config.parallel.sync = config::Sync::kLocal;
                                  config.local.steps = 3;
                                  config.parallel.data = config.parallel.islands = n;
                                  config.batch.global = config.numerics.lanes = n;
                                },
                                512},
                               {"lanes of a rank",
                                [](config::RunConfig& config, std::int64_t n) {
                                  config.batch.global = config.numerics.lanes = n;
                                },
                                4096},
                               {"microbatches",
                                [](config::RunConfig& config, std::int64_t n) {
                                  config.parallel.pipeline = 3;
                                  config.batch.global = n;
                                },
                                1024},
                               {"stages",
                                [](config::RunConfig& config, std::int64_t n) {
                                  config.parallel.pipeline = config.model.transformer.blocks = n;
                                  config.batch.global = 16;
                                },
                                64},
                               {"tensor ranks",
                                [](config::RunConfig& config, std::int64_t n) {
                                  config.parallel.tensor = config.model.transformer.heads = n;
                                  config.model.transformer.width = 2 * n;
                                  config.model.transformer.vocabulary = 256;
                                },
                                64}};
  for (const Axis& axis : axes) {
    const auto work_of = [&](std::int64_t n) {
      config::RunConfig config = gpt();
      config.batch.micro = 1;
      axis.set(config, n);
      const strata::test::Allocations before = strata::test::own_allocations();
      const Plan plan = prepare(config, 0, tokens(), {});
      static_cast<void>(plan_text(plan));
      static_cast<void>(plan_items(plan, ""));
      const strata::test::Allocations after = strata::test::own_allocations();
      return strata::test::Allocations{after.count - before.count, after.bytes - before.bytes};
    };
    const strata::test::Allocations small = work_of(axis.size);
    const strata::test::Allocations large = work_of(4 * axis.size);
    // n log n
    EXPECT_LT(large.count, 5 * small.count) << axis.name;
    EXPECT_LT(large.bytes, 6 * small.bytes) << axis.name;
  }
}

}  // namespace
}  // namespace strata::plan::plan_test
