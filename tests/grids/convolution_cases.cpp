#include <cmath>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "harness.hpp"

namespace strata::grids {
namespace {

const Settings kRest = R"(data.train=images/train.h5 & data.test=images/test.h5
& data.normalise=standard & data.flip=on & data.crop_padding=2 & data.cutout=3
& batch.global=16 & batch.micro=2 & numerics.lanes=4 & numerics.shards=2 & optimizer.kind=adam
& optimizer.learning_rate=0.001 & optimizer.clip_norm=5 & train.steps=3 & train.evaluate_every=2
& run.threads=1)";
const Settings kResnet = kRest + "& model.preset=resnet20";
const Settings kSync = "& model.sync_batch_norm=on";

/// The network of the preset cifar10-cnn, with dropout.
const Settings kCutConvolutions = kRest + R"(
& model.layer=conv 32 3 relu padding=same parallel=column
& model.layer=conv 32 3 relu padding=same parallel=row & model.layer=max_pool 2
& model.layer=conv 64 3 relu padding=same parallel=column & model.layer=batch_norm
& model.layer=conv 64 3 relu padding=same parallel=row & model.layer=max_pool 2
& model.layer=dropout 0.2 & model.layer=flatten & model.layer=dense 512 relu parallel=column
& model.layer=dense 10 parallel=row)";

/// Channels stay split through pools, norms and flatten.
const Settings kStaysCut = kRest + R"(& model.layer=conv 8 5 stride=2 parallel=column
& model.layer=group_norm 4 & model.layer=batch_norm relu & model.layer=dropout 0.1
& model.layer=avg_pool 3 stride=2 padding=1 & model.layer=zero_pad 1 & model.layer=flatten
& model.layer=dense 12 parallel=row relu & model.layer=dense 10)";

Settings norms(const std::string& first, const std::string& second) {
  return kRest + fmt::format(R"(& model.layer=conv 8 3 stride=2 & model.layer=residual
& model.layer=conv 8 3 padding=same & model.layer=batch_norm sync={} relu
& model.layer=conv 8 3 padding=same & model.layer=batch_norm sync={} & model.layer=end relu
& model.layer=max_pool 5 & model.layer=flatten & model.layer=dense 10)",
                             first, second);
}

/// With settings that must not change a bit.
std::vector<std::string> varied(std::string_view grids, std::string_view more = "") {
  return grids::varied(grids,
                       {kSchedules,
                        {2, "data.reader_threads=1 data.reader_threads=3"},
                        {1, "run.threads=1 run.threads=1 run.threads=2"},
                        {3, "parallel.bucket=4 parallel.bucket=0.01"},
                        {1, "train.repeat_every=2"}},
                       more);
}

/// Networks of blocks on small images, for stages that begin anywhere.
const Settings kBlocks = R"(data.train=small-images/train.h5 & data.test=small-images/test.h5
& batch.global=24 & batch.micro=4 & numerics.lanes=2 & train.steps=2 & train.evaluate_every=2
& run.threads=1)";

/// Three layers read what the first one gives; tanh and a sum read one tensor, as do conv and sum.
const Settings kNested = kBlocks + R"(& model.layer=conv 4 3 padding=same & model.layer=residual
& model.layer=residual & model.layer=conv 4 3 padding=same & model.layer=batch_norm relu
& model.layer=shortcut & model.layer=conv 4 1 & model.layer=end relu & model.layer=residual
& model.layer=tanh & model.layer=end & model.layer=shortcut & model.layer=batch_norm
& model.layer=end & model.layer=residual & model.layer=conv 6 1 stride=2 & model.layer=shortcut
& model.layer=conv 6 3 padding=same stride=2 & model.layer=tanh & model.layer=end relu
& model.layer=flatten & model.layer=residual & model.layer=dense 54 & model.layer=end
& model.layer=dense 5)";

/// The input goes to later stages beside what layers give, but no gradient of it comes back. Two
/// sums, and both ways of a block, read it or a view of it.
const Settings kSumsOfInput = kBlocks + R"(& model.layer=residual & model.layer=residual
& model.layer=conv 2 3 padding=same & model.layer=end & model.layer=batch_norm relu
& model.layer=end relu & model.layer=residual & model.layer=conv 3 1 & model.layer=shortcut
& model.layer=conv 3 3 padding=same & model.layer=end & model.layer=flatten
& model.layer=dense 5)";
const Settings kWaysOfInput = kBlocks + R"(& model.layer=residual & model.layer=conv 3 1
& model.layer=batch_norm & model.layer=shortcut & model.layer=conv 3 3 padding=same
& model.layer=tanh & model.layer=end & model.layer=flatten & model.layer=dense 5)";
const Settings kViewOfInput = kBlocks + R"(& model.layer=flatten & model.layer=residual
& model.layer=dense 9 relu & model.layer=dense 72 & model.layer=end relu & model.layer=residual
& model.layer=dense 4 & model.layer=shortcut & model.layer=dense 4 & model.layer=layer_norm
& model.layer=end & model.layer=dense 5)";

/// Two stages that are cut before each layer in turn, and a stage a layer.
std::vector<std::string> every_cut(int layers) {
  std::vector<std::string> runs{fmt::format("1x{}x1 parallel.schedule=zb-h1", layers),
                                fmt::format("1x{}x1 parallel.backward=fused", layers)};
  for (int cut = 1; cut < layers; ++cut) {
    runs.push_back(fmt::format("1x2x1 parallel.split=0,{}", cut));
  }
  return runs;
}

void has_running_statistics(const Result& result) {
  EXPECT_EQ(result.weight("conv1.weight").shape, (Shape{32, 3, 3, 3}));
  EXPECT_EQ(result.weight("batch_norm1.running_var").shape, Shape{64});
  EXPECT_THAT(result.weight("batch_norm1.running_mean").values(), testing::Each(testing::Ne(0.0)));
  for (const auto& [name, tensor] : result.tensors) {
    EXPECT_FALSE(name.starts_with("optimizer/") && name.find("running") != std::string::npos);
  }
}

const Settings kFrozen =
    kCutConvolutions + "& optimizer.frozen=conv1.*,conv2.*,conv4.*,batch_norm1.*,dense1.weight";

void keeps_frozen_layers(const Result& result) {
  const Result first = train(kFrozen + "& train.steps=1");
  std::set<std::string> same;
  for (const auto& [name, tensor] : result.tensors) {
    if (name.starts_with("weights/") && first.tensors.at(name) == tensor) {
      same.insert(name.substr(8));
    }
  }
  EXPECT_THAT(same, testing::ElementsAre("batch_norm1.bias", "batch_norm1.weight", "conv1.bias",
                                         "conv1.weight", "conv2.bias", "conv2.weight", "conv4.bias",
                                         "conv4.weight", "dense1.weight"));
}

TEST(BatchNorm, TakesTheStatisticsThatItsLayersAskFor) {
  std::set<double> losses;
  for (const char* first : {"on", "off"}) {
    for (const char* second : {"on", "off"}) {
      losses.insert(train(norms(first, second) + "& train.steps=1").losses().front());
    }
  }
  EXPECT_EQ(losses.size(), 4U);
}

TEST(BatchNorm, OfAllLanesIsThatOfOneMicrobatch) {
  const Settings exact = kResnet + "& numerics.dtype=float64 & optimizer.kind=sgd";
  const Result whole = train(exact + "& numerics.lanes=1 & batch.micro=16");
  const Result lanes = train(exact + kSync + "& batch.micro=4", "2x1x1");
  EXPECT_THAT(lanes.losses(), testing::Pointwise(testing::DoubleNear(1e-9), whole.losses()));
  EXPECT_THAT(lanes.numbers("train", "grad_norm"),
              testing::Pointwise(testing::DoubleNear(1e-7), whole.numbers("train", "grad_norm")));
  for (const auto& [name, tensor] : whole.tensors) {
    const std::vector<double> expected = tensor.values();
    const std::vector<double> found = lanes.tensors.at(name).values();
    for (std::size_t i = 0; name.find("running") != name.npos && i < expected.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 1e-9 + 1e-7 * std::abs(expected[i])) << name;
    }
  }
}

TEST(BatchNorm, OfAllLanesIsTheSameInFastMode) {
  const Settings two = kResnet + kSync + "& numerics.lanes=2 & numerics.shards=1";
  const std::vector<double> invariant = train(two, "2x1x1").losses();
  const std::vector<double> fast = train(two + "& numerics.mode=fast", "2x1x1").losses();
  // A sum over two ranks is the same in any order.
  for (std::size_t i = 0; i < invariant.size(); ++i) {
    EXPECT_NEAR(fast[i], invariant[i], 1e-6 * invariant[i]);
  }
}

TEST(Augmentation, ChangesWhatIsLearned) {
  const Settings preset = kRest + "& model.preset=cifar10-cnn";
  EXPECT_NE(train(preset).losses(),
            train(preset + "& data.flip=off & data.crop_padding=0 & data.cutout=0").losses());
}

}  // namespace

std::vector<Case> convolution_cases() {
  // The second split sends what is added, what a shortcut reads, and both bodies' outputs. The
  // chunks of the third hand on a gradient that none of their layers reads.
  const char* inside =
      "1x2x1 parallel.split=conv1,residual4.conv2;"
      "1x4x1 parallel.split=conv1,residual1.batch_norm1,residual4.shortcut.zero_channels1,"
      "residual4.end;"
      "1x2x1 parallel.split=conv1,residual1.batch_norm1,residual1.conv2,residual1.batch_norm2 "
      "parallel.schedule=zb-v";
  const std::string split = " parallel.split=conv1,residual1.conv2";
  std::vector<Case> cases{
      {"Cifar10Cnn", kCutConvolutions,
       varied("2x1x1 4x1x1 1x2x1 1x5x1 1x1x2 2x3x1 2x1x2 2x2x2 1x3x2"), has_running_statistics},
      {"Resnet20", kResnet, varied("2x1x1 4x1x1 1x2x1 1x4x1 1x1x2 2x2x1 2x1x2 2x2x2", inside)},
      {"Resnet20JoinedLanes", kResnet + kSync, varied("2x1x1 4x1x1 1x3x1 2x2x1 2x2x2")},
      {"Resnet20SixLanes", kResnet + kSync + "& numerics.lanes=6 & batch.global=24 & train.steps=2",
       varied("2x1x1 3x1x1 6x1x1 3x2x1",
              "1x3x1 parallel.schedule=interleaved;"
              "2x2x1 parallel.schedule=zb-v train.repeat_every=2")},
      {"Resnet20Resumed", kResnet,
       list_of("2x1x2 stop=3:2 | 1x3x1; 1x5x1 train.steps=2 | 2x2x1; 4x1x1 stop=0:1 | 1x1x2")},
      {"Resnet20JoinedLanesResumed", kResnet + kSync,
       list_of("2x1x2 train.steps=2 | 4x1x1; 1x3x1 stop=1:1 | 2x1x2")},
      {"NormsOfSomeLanes",
       norms("on", "off"),
       {"4x1x1", "1x2x1" + split, "2x2x1 parallel.schedule=gpipe" + split, "1x3x1", "2x5x1"}},
      {"BlocksInBlocks", kNested, every_cut(17)},
      {"SumsOfTheInput", kSumsOfInput, every_cut(9)},
      {"WaysOfTheInput", kWaysOfInput, every_cut(7)},
      {"ViewOfTheInput", kViewOfInput, every_cut(9)},
      {"FrozenConvolutions", kFrozen,
       list_of("2x1x2 train.repeat_every=2; 1x3x2;"
               "2x2x1 parallel.schedule=zb-h2 parallel.bucket=0.01"),
       keeps_frozen_layers}};
  for (const std::string dtype : {"float32", "float64", "bfloat16"}) {
    const Settings stays = kStaysCut + "& numerics.dtype=" + dtype;
    cases.push_back({"ChannelsStaySplit_" + dtype, stays, varied("1x1x2 2x3x1 2x2x2 4x1x2 1x5x1")});
    cases.push_back({"ChannelsStaySplitJoinedLanes_" + dtype, stays + kSync,
                     varied("4x1x1 2x3x1 2x2x2 1x5x2")});
  }
  return cases;
}

}  // namespace strata::grids
