#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "harness.hpp"

namespace strata::grids {
namespace {

const Settings kRest = R"(data.train=classes/train.h5 & data.test=classes/test.h5
& batch.global=48 & batch.micro=3 & numerics.lanes=4 & optimizer.kind=adam
& optimizer.learning_rate=0.01 & optimizer.clip_norm=0.5 & schedule.kind=cosine
& schedule.warmup_steps=3 & schedule.decay_steps=12 & train.steps=12 & train.evaluate_every=6
& run.threads=1)";

const Settings kNetwork = kRest + R"(& model.layer=flatten & model.layer=dense 120 relu
& model.layer=layer_norm & model.layer=dropout 0.2 & model.layer=dense 20 & model.layer=gelu
& model.layer=dropout 0.1 & model.layer=dense 16 bias=off & model.layer=tanh & model.layer=dense 5)";

const Settings kRegression = R"(model.layer=dense 12 & model.layer=sigmoid & model.layer=dense 1
& data.train=values/train.h5 & data.test=values/test.h5 & data.normalise=standard
& batch.global=20 & batch.micro=5 & numerics.lanes=2 & optimizer.kind=sgd
& optimizer.learning_rate=0.1 & optimizer.momentum=0.5 & train.epochs=3 & train.evaluate_every=5
& run.threads=1)";

/// For layers that are cut by feature.
const Settings kCutRest = R"(data.train=classes/train.h5 & data.test=classes/test.h5
& batch.global=24 & batch.micro=6 & numerics.lanes=4 & optimizer.kind=adam
& optimizer.learning_rate=0.01 & optimizer.clip_norm=0.5 & train.steps=4 & train.evaluate_every=2
& run.threads=1 & model.layer=flatten)";

const Settings kCut = kCutRest + R"(& numerics.shards=4 & model.layer=dense 32 relu parallel=column
& model.layer=dropout 0.1 & model.layer=dense 16 parallel=row & model.layer=layer_norm
& model.layer=dense 24 parallel=column bias=off & model.layer=gelu
& model.layer=dense 16 parallel=row & model.layer=dense 5)";

const Cycle kThreads{2, "run.threads=1 run.threads=2 run.threads=1"};

std::vector<std::string> scheduled(std::string_view grids) {
  return varied(grids, {kSchedules, kThreads});
}

/// The grids under each schedule.
std::vector<std::string> every_schedule(std::string_view grids) {
  std::vector<std::string> runs;
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-h2"}) {
    for (const std::string& run : varied(grids, {kThreads})) {
      runs.push_back(run + " parallel.schedule=" + schedule);
    }
  }
  return runs;
}

/// A schedule of two ranks with five chunks, in PyTorch's form.
void write_turns() {
  std::string lines;
  for (const std::vector<int>& stages : {std::vector<int>{0, 3}, {1, 2, 4}}) {
    std::string line;
    for (int m = 0; m < 16; ++m) {
      for (const int stage : stages) {
        line += fmt::format("{}F{},", stage, m);
      }
      for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
        line += fmt::format("{}B{},", *stage, m);
      }
    }
    line.back() = '\n';
    lines += line;
  }
  write_scratch("turns.csv", lines);
}

void learns_and_clips(const Result& result) {
  learns(result);
  const std::vector<double> norms = result.numbers("train", "grad_norm");
  EXPECT_GT(*std::ranges::max_element(norms), 0.5);
  EXPECT_EQ(result.numbers("evaluate", "step"), (std::vector<double>{6, 12}));
  EXPECT_EQ(result.tensors.size(), 3U * 9U);
}

/// The losses of a mixture's sets are means over parts of the step's samples.
void tells_sets_apart(const Result& result) {
  learns(result);
  for (const nlohmann::json& record : result.records) {
    if (record.at("kind") == "receipt") {
      continue;
    }
    double least = std::numeric_limits<double>::infinity();
    double most = -least;
    for (const auto& [key, value] : record.items()) {
      if (key.starts_with("loss/")) {
        least = std::min(least, value.get<double>());
        most = std::max(most, value.get<double>());
      }
    }
    EXPECT_LT(least, most) << record.dump();
    EXPECT_LE(least, record.at("loss").get<double>()) << record.dump();
    EXPECT_GE(most, record.at("loss").get<double>()) << record.dump();
  }
}

}  // namespace

std::vector<Case> dense_cases() {
  const Cycle recompute{1, "train.recompute=full train.recompute=selective"};
  std::vector<Case> cases{
      {"Dense", kNetwork, every_schedule("2x1 4x1 1x2 1x3 2x2 4x2 2x3 1x5 1x7 1x10 4x3"),
       learns_and_clips},
      {"DenseBuckets", kNetwork + "& train.steps=6",
       varied("1x1 2x1 4x1 2x2 2x3 1x4", {{1, "parallel.bucket=0.0001"}})},
      {"DenseFloat64", kNetwork + "& numerics.dtype=float64", scheduled("4x1 1x3 2x2 4x2 1x5")},
      {"DenseBfloat16", kNetwork + "& numerics.dtype=bfloat16", scheduled("4x1 1x3 2x2 4x2 1x5")},
      {"DenseRecompute", kNetwork + "& train.steps=4 & train.evaluate_every=2",
       varied("1x1 2x1 1x3 2x2 4x2 1x5", {recompute, kSchedules})},
      {"DenseRepeats", kNetwork + "& train.steps=6 & train.label_smoothing=0.2 & train.z_loss=0.01",
       varied("2x1 4x1 1x3 2x2 4x2", {{1, "train.repeat_every=2 train.repeat_every=1"}})},
      {"DenseSixLanes", kNetwork + "& numerics.lanes=6 & batch.micro=4",
       scheduled("2x1 3x1 6x1 3x2 2x3 6x2 3x3")},
      {"DenseSevenLanes", kNetwork + "& numerics.lanes=7 & batch.global=42 & train.steps=6",
       scheduled("7x1 1x3 1x7 7x2")},
      {"DenseFifteenLanes",
       kNetwork + "& numerics.lanes=15 & batch.global=60 & batch.micro=2 & train.steps=6",
       scheduled("3x1 5x1 15x1 3x3 5x2")},
      {"DenseResumed", kNetwork,
       list_of("1x1 train.steps=6 | 2x2; 4x1 train.steps=6 | 1x3; 2x3 train.steps=6 | 1x1;"
               "2x2 train.steps=6 | 4x1 numerics.lanes=0 batch.micro=0;"
               "1x7 train.steps=6 | 4x2; 2x1 stop=1:5 | 1x3;"
               "2x2 stop=3:2 | 4x1 stop=2:6 | 1x10;"
               "1x5 stop=0:8 parallel.schedule=zb-h2 | 2x1")},
      {"DenseFlattens", kNetwork + "& train.steps=6",
       list_of("1x2 parallel.split=0,1; 2x2 parallel.split=flatten1,dense1;"
               "2x3 parallel.split=0,8,9; 1x3 parallel.split=0,1,2")},
      // Messages of 20 KiB: what the middle stage sends is the memory that it received.
      {"DenseMiddleFlattens",
       kRest + "& data.train=planes/train.h5 & data.test=planes/test.h5 & batch.global=128"
               "& batch.micro=4 & train.steps=8 & model.layer=dense 32 & model.layer=gelu"
               "& model.layer=flatten & model.layer=dense 5",
       varied("1x3 1x3 2x3 1x3", {kSchedules, {1, "parallel.split=0,2,3"}})},
      {"DenseViews",
       kRest + "& data.train=squares/train.h5 & data.test=squares/test.h5 & batch.global=64"
               "& batch.micro=4 & train.steps=6 & model.layer=dense 64 relu & model.layer=dense 64"
               "& model.layer=flatten & model.layer=dense 32 relu & model.layer=dense 5",
       varied("1x2 1x2 2x2 4x2",
              {kSchedules, {1, "parallel.split=0,3"}, {1, "train.recompute=selective"}})},
      // The second chunk of rank 1 does not read what the block's end adds. Messages of 9.6 KB; an
      // evaluation whose stages run ahead of each other would deadlock on the file's chunks, with
      // memory for one microbatch.
      {.name = "DenseSkips",
       .settings = kRest +
                   "& batch.global=64 & batch.micro=4 & numerics.lanes=2 & train.steps=3"
                   "& train.evaluate_every=1 & model.layer=flatten & model.layer=dense 600 relu"
                   "& model.layer=residual & model.layer=dense 600 & model.layer=dense 600"
                   "& model.layer=dense 600 & model.layer=end & model.layer=dense 5",
       .runs = list_of("1x2 parallel.split=0,2,3,5 parallel.schedule=zb-v;"
                       "2x2 parallel.split=0,2,3,5 parallel.schedule=zb-v;"
                       "1x2 parallel.split=0,2,3,5 parallel.schedule=interleaved;"
                       "1x2 parallel.split=0,2,3,4 parallel.schedule=interleaved "
                       "parallel.backward=fused;"
                       "1x2 parallel.split=0,2,3,4,5 parallel.schedule=file:turns.csv"),
       .before = write_turns},
      {"DenseMixture",
       kNetwork + "& data.train=classes/train.h5:0.3, more-classes/train.h5:0.7"
                  "& data.test=more-classes/test.h5, classes/test.h5 & data.normalise=standard"
                  "& train.steps=6 & train.evaluate_every=3",
       varied("2x1 4x1 1x3 2x2 4x2 1x7", {}, "2x2 train.steps=3 | 1x3; 2x1 stop=1:2 | 4x1"),
       tells_sets_apart},
      {"RegressionMixture",
       kRegression + "& data.train=values/train.h5:1, values/test.h5:2 & data.mixture_by=epochs"
                     "& data.test=values/test.h5, values/train.h5",
       varied("2x1 2x2 1x3", {}, "2x2 stop=1:7 | 1x1"), tells_sets_apart},
      {"Regression", kRegression, scheduled("2x1 2x2 1x3 2x3"), learns},
      {"FeatureSplit", kCut, every_schedule("1x1x2 2x1x2 1x2x2 1x1x4 2x2x2 1x3x4"), learns},
      {"FeatureSplitBfloat16", kCut + "& numerics.dtype=bfloat16",
       varied("1x1x2 2x1x2 1x2x2 1x1x4 4x1x2 1x5x2", {kSchedules, kThreads, recompute}), learns},
      {"FeatureSplitThreeShards",
       kCutRest + "& numerics.shards=3 & model.layer=dense 30 relu parallel=column"
                  "& model.layer=dropout 0.1 & model.layer=dense 15 parallel=row"
                  "& model.layer=dense 5",
       scheduled("1x1x3 2x1x3 1x2x3 4x1x3 1x3x3")},
      {"FeatureSplitAtTheEnd",
       kCutRest + "& numerics.shards=5 & model.layer=dense 10 relu parallel=column"
                  "& model.layer=dropout 0.3 & model.layer=dense 15 parallel=row"
                  "& model.layer=layer_norm & model.layer=dense 5 parallel=column",
       scheduled("1x1x5 2x1x5 1x2x5 1x3x5")},
      {"FeatureSplitBetween", kCut,
       list_of("1x3x2 parallel.split=0,2,7; 1x2x4 parallel.split=0,3;"
               "1x3x2 parallel.split=0,2,7 parallel.schedule=gpipe run.threads=2;"
               "2x3x2 parallel.split=0,2,7 parallel.schedule=zb-h1")}};
  for (const auto& [name, optimizer] :
       {std::pair{"Sgd", "sgd"},
        {"Nesterov",
         "sgd & optimizer.momentum=0.9 & optimizer.nesterov=on & optimizer.weight_decay=0.01"},
        {"AdamW", "adamw & optimizer.weight_decay=0.1 & optimizer.decay=matrices"},
        {"Adagrad", "adagrad"}}) {
    cases.push_back({std::string("Dense") + name,
                     kNetwork + "& train.steps=6 & optimizer.kind=" + optimizer,
                     list_of("2x2; 4x1; 1x3; 2x1 stop=0:2 | 1x5")});
  }
  return cases;
}

}  // namespace strata::grids
