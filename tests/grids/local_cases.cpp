#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>

#include "harness.hpp"

namespace strata::grids {
namespace {

const Settings kRest = "& batch.micro=3 & parallel.sync=local & run.threads=1";
const Settings kNetwork = kRest + R"(& model.layer=flatten & model.layer=dense 40 relu
& model.layer=layer_norm & model.layer=dropout 0.1 & model.layer=dense 24 & model.layer=gelu
& model.layer=dense 5 & data.train=classes/train.h5 & data.test=classes/test.h5 & batch.global=48
& parallel.islands=4 & local.steps=6 & optimizer.kind=adam & optimizer.learning_rate=0.01
& optimizer.clip_norm=0.5 & schedule.kind=cosine & schedule.warmup_steps=3
& schedule.decay_steps=24 & train.steps=24 & train.evaluate_every=12 & checkpoint.every=12)";
const Settings kImages = kRest + R"(& model.layer=conv 8 3 relu & model.layer=batch_norm
& model.layer=flatten & model.layer=dense 5 & data.train=small-images/train.h5
& data.test=small-images/test.h5 & batch.global=24 & numerics.lanes=4 & parallel.islands=2
& local.steps=2 & local.mix=0.5 & train.steps=6 & train.evaluate_every=2)";

void is_near(const std::vector<double>& found, const std::vector<double>& expected, double bound) {
  EXPECT_THAT(found, testing::Pointwise(testing::DoubleNear(bound), expected));
}

TEST(LocalSteps, InRoundsOfOneAreSynchronousTraining) {
  for (const auto& [dtype, bound] : {std::pair{"float32", 1e-6}, {"float64", 1e-13}}) {
    const Settings settings =
        kNetwork +
        "& optimizer.kind=sgd & train.steps=50 & optimizer.clip_norm=0"
        "& schedule.decay_steps=50 & train.evaluate_every=0 & checkpoint.every=0"
        "& numerics.lanes=4 & numerics.dtype=" +
        dtype;
    const Result step =
        train(settings + "& parallel.sync=step & parallel.islands=0 & local.steps=50", "2x1");
    const Result local =
        train(settings + "& local.steps=1 & local.outer_rate=1 & local.outer_momentum=0", "2x1");
    is_near(local.losses(), step.losses(), bound);
    for (const auto& [name, tensor] : step.tensors) {
      is_near(local.tensors.at(name).values(), tensor.values(), bound);
    }
  }
}

}  // namespace

std::vector<Case> local_cases() {
  std::vector<Case> cases;
  // What is averaged, when, and how it is sent. Rounds end at multiples of 6 steps.
  for (const auto& [name, settings] : std::vector<std::pair<std::string, Settings>>{
           {"DiLoCo", ""},
           {"Plain", "& local.outer_momentum=0 & local.outer_rate=1"},
           {"Rounded", "& local.exchange=int4"},
           {"Streaming",
            "& local.fragments=3 & local.delay=1 & local.exchange=int6 & numerics.lanes=8"},
           {"Float64", "& numerics.dtype=float64 & local.fragments=2 & local.exchange=bfloat16"},
           {"Bfloat16", "& numerics.dtype=bfloat16 & local.delay=2 & local.mix=0.25"}}) {
    cases.push_back({"Local" + name, kNetwork + settings,
                     list_of("2x1; 4x1; 1x3; 2x2; 4x2; 1x7; 4x3; 2x2 train.steps=12 | 1x1;"
                             "2x2 train.steps=12 | 4x1; 1x3 train.steps=12 | 2x3;"
                             "4x1 stop=2:8 | 1x5" +
                             std::string(name == "Streaming" ? "; 8x1" : "")),
                     learns});
  }
  // Running statistics are averaged plainly, also those of lanes together.
  for (const std::string sync : {"off", "on"}) {
    cases.push_back({"LocalBatchNorm_" + sync, kImages + "& model.sync_batch_norm=" + sync,
                     list_of("2x1; 4x1; 2x2; 1x3; 4x2; 2x1 train.steps=4 | 1x3")});
  }
  // A tied table, frozen matrices, adapters, shards and stages.
  for (const auto& [name, settings] : std::vector<std::pair<std::string, Settings>>{
           {"", "& local.fragments=2"},
           {"Bfloat16", "& numerics.dtype=bfloat16 & local.mix=0.5"},
           {"Frozen", "& optimizer.frozen=*.attention.*,embedding.*"},
           {"Documents", kDocuments + "& data.packing=documents"},
           {"Mixture", kDocuments + "& data.packing=documents & data.train=documents/train.h5:0.3, "
                                    "text/train.h5:0.7"},
           {"Lora", "& lora.rank=2 & numerics.dtype=bfloat16"}}) {
    cases.push_back({"LocalGpt" + name,
                     kGpt +
                         "& parallel.sync=local & parallel.islands=2 & local.steps=2"
                         "& train.steps=4 & checkpoint.every=2 & local.exchange=int8" +
                         settings,
                     list_of("2x2x1; 4x1x2; 1x3x2; 2x1x4; 1x7x1; 2x1x2 train.steps=2 | 1x5x1"),
                     [mixed = name == "Mixture"](const Result& result) {
                       const nlohmann::json& record = result.records.front();
                       EXPECT_EQ(record.contains("loss/documents/train.h5"), mixed);
                       EXPECT_EQ(record.contains("loss/text/train.h5"), mixed);
                     }});
  }
  return cases;
}

}  // namespace strata::grids
