#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "harness.hpp"

namespace strata::grids {
namespace {

constexpr const char* kLines = R"(layer = embedding 24 positions=16
layer = dropout 0.2
layer = attention 4 kv_heads=4 rotary=10000
layer = gelu
layer = dropout 0.1
layer = mlp 40 swiglu norm=rms_norm bias=no
layer = layer_norm
layer = head
)";

// What must not change a bit, besides the grid.
const Cycle kSequence{1, {"parallel.sequence=on", "parallel.sequence=off"}};
const Cycle kRecompute{
    1, {"train.recompute=none", "train.recompute=selective", "train.recompute=full"}};
const Cycle kSchedule{2,
                      {"parallel.schedule=1f1b", "parallel.schedule=gpipe",
                       "parallel.schedule=zb-h1", "parallel.schedule=zb-h2"}};
const Cycle kThreads{3, {"run.threads=1", "run.threads=1", "run.threads=2"}};
const Cycle kBucket{1,
                    {"parallel.bucket=4", "parallel.bucket=4", "parallel.bucket=0.001",
                     "parallel.bucket=0.02", "parallel.bucket=4"}};
const Cycle kRepeat{1, {"train.repeat_every=2"}};

std::vector<std::string> varied(std::string_view grids) {
  return grids::varied(grids,
                       std::vector{kSequence, kRecompute, kSchedule, kThreads, kBucket, kRepeat});
}

constexpr std::int64_t kLayers = 7;  // embedding, twice attention and mlp, norm, head

/// All grids of at most `ranks` ranks.
std::string every_grid(std::int64_t ranks) {
  std::string grids;
  for (const std::int64_t data : {1, 2, 4}) {
    for (std::int64_t pipeline = 1; pipeline <= kLayers; ++pipeline) {
      for (const std::int64_t tensor : {1, 2, 4}) {
        if (const std::int64_t size = data * pipeline * tensor; size > 1 && size <= ranks) {
          grids += fmt::format("{}x{}x{} ", data, pipeline, tensor);
        }
      }
    }
  }
  return grids;
}

void is_a_language_model(const Result& result) {
  learns(result);
  EXPECT_NEAR(result.losses().front(), std::log(26.0), 0.1);
  const std::vector<double> norms = result.numbers("train", "grad_norm");
  EXPECT_LT(*std::ranges::min_element(norms), 1.3);
  EXPECT_GT(*std::ranges::max_element(norms), 1.3) << "clipping had nothing to do";
  EXPECT_EQ(result.numbers("evaluate", "step"), (std::vector<double>{2, 3}));
  EXPECT_EQ(result.weight("embedding.tokens.weight").shape, (Shape{26, 32}));
  EXPECT_FALSE(result.tensors.contains("weights/head.weight"));
}

void is_stored_in_float32(const Result& result) {
  for (const auto& [name, tensor] : result.tensors) {
    EXPECT_EQ(tensor.dtype, DType::kFloat32) << name;
  }
}

void is_a_llama(const Result& result) {
  for (const auto& [name, tensor] : result.tensors) {
    EXPECT_FALSE(name.starts_with("weights/") && name.ends_with("bias")) << name;
  }
  EXPECT_EQ(result.weight("head.weight").shape, (Shape{26, 32}));
  // 8 query heads, 4 keys and 4 values of 4 elements each.
  EXPECT_EQ(result.weight("blocks.0.attention.qkv.weight").shape, (Shape{64, 32}));
}

void make_files() {
  // Made for 4 stages of unlike times, and ZB-H2 with its messages in the file.
  make_schedule({"make", "--memory=5", "--chunks=1", "--forward=1,2,1,1", "--output=made.csv"});
  make_schedule({"convert", "zb-h2", "--messages=on", "--output=messages.csv"});
}

void make_chunks() {
  make_schedule(
      {"make", "--memory=6", "--chunks=2", "--stages=3", "--output=v.csv", "--microbatches=8"});
  make_schedule({"convert", "interleaved", "--chunks=3", "--stages=2", "--messages=on",
                 "--output=loop.csv", "--microbatches=8"});
}

void make_four() {
  make_schedule({"make", "--memory=5", "--chunks=2", "--forward=1,2,1,1", "--output=four.csv"});
}

const std::string kModel = language_config(kGpt);

TEST(LanguageModel, ShardsFixTheNumbers) {
  const Result one = train(kModel, {"numerics.shards=1", "model.dropout=0"});
  const Result four = train(kModel, {"numerics.shards=4", "model.dropout=0"});
  EXPECT_NE(one.numbers("train", "grad_norm"), four.numbers("train", "grad_norm"));
  EXPECT_THAT(one.losses(), testing::Pointwise(testing::DoubleNear(1e-4), four.losses()));
}

TEST(LanguageModel, LosesLittleWhereSumsOfShardsAreRounded) {
  const Settings pieces{"numerics.dtype=bfloat16", "numerics.row_pieces=2", "train.steps=2"};
  const Result rounded = train(kModel, joined(pieces, {"numerics.shard_sums=bfloat16"}));
  const Result exact = train(kModel, pieces);
  EXPECT_NE(rounded.numbers("train", "grad_norm"), exact.numbers("train", "grad_norm"));
  EXPECT_THAT(rounded.losses(), testing::Pointwise(testing::DoubleNear(1e-2), exact.losses()));
}

TEST(LanguageModel, PiecesOfTheLossAddUpToIt) {
  for (const Settings& model : {Settings(), kLlama}) {
    for (const auto& [dtype, bound] : {std::pair{"float32", 1e-4}, {"bfloat16", 1e-2}}) {
      const Settings settings =
          joined(model, {std::string("numerics.dtype=") + dtype, "train.steps=2"});
      const Result whole = train(kModel, settings);
      const Result pieces = train(kModel, joined(settings, {"numerics.loss_pieces=4"}));
      for (const char* kind : {"train", "evaluate"}) {
        EXPECT_THAT(pieces.numbers(kind, "loss"),
                    testing::Pointwise(testing::DoubleNear(bound), whole.numbers(kind, "loss")));
      }
    }
  }
  const auto fast = [](const std::string& pieces) {
    return train(kModel,
                 {"numerics.mode=fast", "numerics.lanes=0", "numerics.shards=0", "train.steps=1",
                  "model.dropout=0", "numerics.loss_pieces=" + pieces},
                 "2x1x2")
        .losses()
        .front();
  };
  EXPECT_NEAR(fast("1"), fast("32"), 1e-5);
}

TEST(LanguageModel, IsNearInFastModeAndResumes) {
  const Result invariant = train(kModel, {"model.dropout=0", "train.steps=4"});
  const Result fast = train(kModel,
                            {"model.dropout=0", "numerics.mode=fast", "numerics.lanes=0",
                             "numerics.shards=0", "train.steps=4"},
                            "2x1x2 train.steps=2 | 1x2x2");
  for (const char* kind : {"train", "evaluate"}) {
    EXPECT_EQ(fast.numbers(kind, "step"), invariant.numbers(kind, "step"));
    EXPECT_THAT(fast.numbers(kind, "loss"),
                testing::Pointwise(testing::DoubleNear(1e-4), invariant.numbers(kind, "loss")));
  }
}

/// Chunks, and the table of token vectors tied to the head.
Case chunks() {
  const std::string interleaved = " parallel.schedule=interleaved";
  const std::string zbv = " parallel.schedule=zb-v";
  const std::string all = " parallel.schedule=auto";
  return {
      .name = "GptChunks",
      .config = kModel,
      .settings = {"numerics.lanes=2"},
      .runs = {"1x1x1" + interleaved, "1x2x1 train.repeat_every=2" + interleaved,
               "1x2x1 parallel.chunks=3 parallel.bucket=0.001" + interleaved,
               "1x3x1 train.recompute=selective" + interleaved,
               "2x2x2 parallel.chunks=3 train.repeat_every=2 parallel.sequence=on" + interleaved,
               "1x2x1 train.recompute=full" + zbv, "1x3x1 parallel.bucket=0.02" + zbv,
               "2x3x1 train.repeat_every=2" + zbv,
               "2x2x2 parallel.sequence=on parallel.bucket=0.001" + zbv,
               "1x3x1 parallel.schedule=file:v.csv run.threads=2",
               "1x2x1 parallel.schedule=file:loop.csv", "1x3x1" + all,
               "2x2x1 parallel.chunks=2 parallel.activations=3" + all,
               "1x3x1 train.recompute=full" + all, "1x2x1 parallel.backward=fused" + all,
               "1x2x1 parallel.backward=fused", "1x1x1 parallel.backward=split",
               "2x2x1 stop=1:2" + zbv + " | 1x2x1" + interleaved + " stop=0:1 | 1x3x1"},
      .before = make_chunks};
}

}  // namespace

std::string language_config(std::string_view model) {
  return "[model]\ncontext = 16\n" + std::string(model) + R"([data]
train = text/train.h5
test = text/test.h5
[batch]
global = 16
micro = 2
[numerics]
lanes = 4
shards = 4
[optimizer]
kind = adamw
learning_rate = 0.01
weight_decay = 0.1
decay = matrices
clip_norm = 1.3
[schedule]
kind = cosine
warmup_steps = 1
decay_steps = 10
[train]
steps = 3
evaluate_every = 2
evaluate_batches = 1
[run]
threads = 1
)";
}

std::vector<Case> language_cases() {
  const Settings two{"train.steps=2"};
  std::vector<std::string> files;
  for (const char* schedule :
       {"file:made.csv", "file:messages.csv", "1f1b", "gpipe", "zb-h1", "zb-h2"}) {
    files.push_back(std::string("1x4x1 parallel.schedule=") + schedule);
  }
  files.push_back("1x4x1 stop=3:1 parallel.schedule=file:made.csv | 1x2x1");
  std::vector<std::string> four;
  for (const char* schedule :
       {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "auto", "file:four.csv"}) {
    four.push_back(
        fmt::format("1x4x1 parallel.schedule={} {}", schedule, kRecompute.values[four.size() % 3]));
  }
  const std::vector<std::string> on_nodes{"2x1x1 parallel.node_ranks=1",
                                          "4x1x1 parallel.node_ranks=2 parallel.bucket=0.001",
                                          "8x1x1 parallel.node_ranks=2 train.repeat_every=2",
                                          "8x1x1 parallel.node_ranks=4 parallel.bucket=0.02",
                                          "4x1x2 parallel.node_ranks=4 train.repeat_every=2",
                                          "4x2x1 parallel.node_ranks=2"};
  const std::string on = " parallel.sequence=on";
  std::vector<Case> cases{
      {"Gpt", kModel, {}, varied(every_grid(12)), is_a_language_model},
      {"GptRecompute", kModel, joined(two, {"numerics.dtype=bfloat16", "data.test="}),
       grids::varied("1x1x4 1x2x2 1x1x4 2x1x2 1x3x2 1x1x4 2x2x2 1x5x2 1x7x1",
                     std::vector{Cycle{3, kSequence.values}, kRecompute})},
      {"GptBfloat16", kModel, joined(two, {"numerics.dtype=bfloat16"}),
       varied("1x1x2 1x2x4 2x2x2 4x1x1 1x7x1 1x5x2 2x3x1 4x1x2"), is_stored_in_float32},
      {"GptFloat64", kModel, joined(two, {"numerics.dtype=float64"}),
       varied("1x2x2 2x1x4 1x7x1 4x2x1")},
      {.name = "GptScheduleFile",
       .config = kModel,
       .settings = joined(two, {"numerics.lanes=2"}),
       .runs = files,
       .before = make_files},
      chunks(),
      // 9 layers: two chunks on each of 4 stages.
      {.name = "GptFourStages",
       .config = kModel,
       .settings = joined(two, {"numerics.lanes=2", "model.blocks=3"}),
       .runs = four,
       .before = make_four},
      {"LayerLines",
       language_config(kLines),
       two,
       {"1x1x2" + on, "1x2x4 run.threads=2" + on, "2x1x2 train.recompute=full" + on, "1x8x1",
        "1x4x2 parallel.schedule=gpipe" + on, "1x5x1", "1x3x4 parallel.schedule=zb-h1" + on}},
      {"GptOtherShards",
       kModel,
       joined(two, {"numerics.shards=2", "numerics.lanes=3", "batch.global=12", "batch.micro=1",
                    "model.vocabulary=41"}),
       {"1x1x2" + on, "3x1x2", "1x3x2" + on, "3x3x1", "1x5x2"},
       [](const Result& result) {
         EXPECT_EQ(result.weight("embedding.tokens.weight").shape, (Shape{41, 32}));
       }},
      {"GptUnevenNumbers", kModel,
       joined(two, {"numerics.shards=3", "numerics.lanes=5", "batch.global=10", "batch.micro=1",
                    "model.width=24", "model.heads=6", "model.context=15"}),
       varied("1x1x3 5x1x1 1x2x3 1x3x3 5x2x1 1x7x1")},
      {"GptResumed",
       kModel,
       {"train.steps=4"},
       {"2x2x2 train.steps=2 | 4x1x1 parallel.schedule=gpipe" + on,
        "2x2x2 stop=7:1 | 1x7x1 stop=3:2 | 1x1x4" + on}},
      {"GptBfloat16Resumed",
       kModel,
       {"numerics.dtype=bfloat16", "train.steps=4"},
       {"1x1x1 train.steps=2" + on + " | 1x2x4 train.recompute=full",
        "1x1x4 train.steps=2" + on + " | 1x3x1",
        "2x2x2 train.steps=2 | 4x1x1 parallel.schedule=gpipe" + on,
        "1x2x2 train.steps=2 train.recompute=selective | 2x1x4" + on, "1x5x1 stop=4:3 | 2x3x2"}},
      {"GptWindowsResumed",
       kModel,
       {"data.sampling=windows", "train.steps=4"},
       {"1x1x2 train.steps=2 | 2x2x1", "4x1x1 stop=0:1 | 1x3x1"}},
      {"GptLossPiecesResumed",
       kModel,
       {"numerics.loss_pieces=2", "train.steps=4"},
       {"2x1x2 train.steps=2 | 1x2x1", "1x4x1 stop=0:3 | 1x1x4"}},
      {.name = "GptVirtualGridOfTheFirstLaunch",
       .config = kModel,
       .settings = {"numerics.lanes=0", "numerics.shards=0", "batch.micro=0", "train.steps=4"},
       .runs = {"2x1x2 train.steps=2 | 1x2x1", "2x1x2 stop=1:3 | 1x3x2"},
       .reference = "2x1x2"},
      {"GptRoundedSums", kModel,
       joined(two,
              {"numerics.dtype=bfloat16", "numerics.shard_sums=bfloat16", "numerics.row_pieces=2"}),
       varied("1x1x2 1x1x4 2x1x4 1x2x2")}};
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const Settings typed = joined(two, {"numerics.dtype=" + dtype});
    cases.push_back({"GptNodes_" + dtype, kModel, joined(typed, {"numerics.lanes=8"}), on_nodes});
    cases.push_back({"Llama_" + dtype, kModel,
                     joined(joined(kLlama, typed), {"model.rotary_scaling=llama3:8:1:4:16"}),
                     varied("1x1x4 2x2x2 1x2x4 2x1x2 1x7x1 1x5x2"), is_a_llama});
    for (const auto& [name, model] : {std::pair{"Tied", Settings()}, {"Untied", kLlama}}) {
      cases.push_back({std::string("GptLossPieces") + name + "_" + dtype, kModel,
                       joined(joined(model, typed), {"numerics.loss_pieces=4"}),
                       joined(varied("2x1x1 1x2x1 1x1x2 2x2x2 1x1x4 1x3x1 1x5x2"),
                              {"1x2x1 parallel.schedule=zb-v"})});
    }
    cases.push_back(
        {"GptRowPieces_" + dtype, kModel,
         joined(joined(dtype == "float32" ? Settings() : kLlama, typed), {"numerics.row_pieces=2"}),
         varied("1x1x2 1x2x4 2x1x2 1x1x4 2x2x2 1x3x2")});
  }
  return cases;
}

}  // namespace strata::grids
