#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>

#include "harness.hpp"

namespace strata::grids {
namespace {

constexpr const char* kNetwork = R"([model]
layer = flatten
layer = dense 40 relu
layer = layer_norm
layer = dropout 0.1
layer = dense 24
layer = gelu
layer = dense 5
[data]
train = classes/train.h5
test = classes/test.h5
[batch]
global = 48
micro = 3
[parallel]
sync = local
islands = 4
[local]
steps = 6
[optimizer]
kind = adam
learning_rate = 0.01
clip_norm = 0.5
[schedule]
kind = cosine
warmup_steps = 3
decay_steps = 24
[train]
steps = 24
evaluate_every = 12
[checkpoint]
every = 12
[run]
threads = 1
)";

std::string images(const std::string& sync) {
  return "[model]\nlayer = conv 8 3 relu\nlayer = batch_norm\nlayer = flatten\nlayer = dense 5\n"
         "sync_batch_norm = " +
         sync + R"(
[data]
train = small-images/train.h5
test = small-images/test.h5
[batch]
global = 24
micro = 3
[numerics]
lanes = 4
[parallel]
sync = local
islands = 2
[local]
steps = 2
mix = 0.5
[train]
steps = 6
evaluate_every = 2
[run]
threads = 1
)";
}

void is_near(const std::vector<double>& found, const std::vector<double>& expected, double bound) {
  EXPECT_THAT(found, testing::Pointwise(testing::DoubleNear(bound), expected));
}

TEST(LocalSteps, InRoundsOfOneAreSynchronousTraining) {
  for (const auto& [dtype, bound] : {std::pair{"float32", 1e-6}, {"float64", 1e-13}}) {
    const Settings settings{std::string("numerics.dtype=") + dtype,
                            "optimizer.kind=sgd",
                            "train.steps=50",
                            "optimizer.clip_norm=0",
                            "schedule.decay_steps=50",
                            "train.evaluate_every=0",
                            "checkpoint.every=0",
                            "numerics.lanes=4"};
    const Result step = train(
        kNetwork, joined(settings, {"parallel.sync=step", "parallel.islands=0", "local.steps=50"}),
        "2x1");
    const Result local = train(
        kNetwork,
        joined(settings, {"local.steps=1", "local.outer_rate=1", "local.outer_momentum=0"}), "2x1");
    is_near(local.losses(), step.losses(), bound);
    for (const auto& [name, tensor] : step.tensors) {
      is_near(local.tensors.at(name).values(), tensor.values(), bound);
    }
  }
}

}  // namespace

std::vector<Case> local_cases() {
  struct Kind {
    const char* name;
    Settings settings;  ///< what is averaged, when, and how it is sent
  };
  const std::vector<Kind> kinds{
      {"DiLoCo", {}},
      {"Plain", {"local.outer_momentum=0", "local.outer_rate=1"}},
      {"Rounded", {"local.exchange=int4"}},
      {"Streaming",
       {"local.fragments=3", "local.delay=1", "local.exchange=int6", "numerics.lanes=8"}},
      {"Float64", {"numerics.dtype=float64", "local.fragments=2", "local.exchange=bfloat16"}},
      {"Bfloat16", {"numerics.dtype=bfloat16", "local.delay=2", "local.mix=0.25"}}};
  std::vector<Case> cases;
  for (const Kind& kind : kinds) {
    std::vector<std::string> runs{"2x1", "4x1", "1x3", "2x2", "4x2", "1x7", "4x3"};
    if (std::string(kind.name) == "Streaming") {
      runs.emplace_back("8x1");
    }
    // Rounds end at multiples of 6.
    for (const char* run : {"2x2 train.steps=12 | 1x1", "2x2 train.steps=12 | 4x1",
                            "1x3 train.steps=12 | 2x3", "4x1 stop=2:8 | 1x5"}) {
      runs.emplace_back(run);
    }
    cases.push_back({std::string("Local") + kind.name, kNetwork, kind.settings, runs, learns});
  }
  // Running statistics are averaged plainly, also those of lanes together.
  for (const std::string sync : {"off", "on"}) {
    cases.push_back({"LocalBatchNorm_" + sync,
                     images(sync),
                     {},
                     {"2x1", "4x1", "2x2", "1x3", "4x2", "2x1 train.steps=4 | 1x3"}});
  }
  // A tied table, frozen matrices, adapters, shards and stages.
  const Settings transformer{"parallel.sync=local", "parallel.islands=2", "local.steps=2",
                             "train.steps=4",       "checkpoint.every=2", "local.exchange=int8"};
  for (const Kind& kind :
       std::vector<Kind>{{"Gpt", {"local.fragments=2"}},
                         {"GptBfloat16", {"numerics.dtype=bfloat16", "local.mix=0.5"}},
                         {"GptFrozen", {"optimizer.frozen=*.attention.*,embedding.*"}},
                         {"GptLora", {"lora.rank=2", "numerics.dtype=bfloat16"}}}) {
    cases.push_back({std::string("Local") + kind.name,
                     language_config(kGpt),
                     joined(transformer, kind.settings),
                     {"2x2x1", "4x1x2", "1x3x2", "2x1x4", "1x7x1", "2x1x2 train.steps=2 | 1x5x1"}});
  }
  return cases;
}

}  // namespace strata::grids
