#include <cmath>
#include <set>

#include <gmock/gmock.h>

#include "harness.hpp"

namespace strata::grids {
namespace {

constexpr const char* kRest = R"([data]
train = images/train.h5
test = images/test.h5
normalise = standard
flip = on
crop_padding = 2
cutout = 3
[batch]
global = 16
micro = 2
[numerics]
lanes = 4
shards = 2
[optimizer]
kind = adam
learning_rate = 0.001
clip_norm = 5
[train]
steps = 3
evaluate_every = 2
[run]
threads = 1
)";

std::string config_of(std::string_view model) {
  return "[model]\n" + std::string(model) + kRest;
}

/// Channels stay split through pools, norms and flatten.
constexpr const char* kStaysCut = R"(layer = conv 8 5 stride=2 parallel=column
layer = group_norm 4
layer = batch_norm relu
layer = dropout 0.1
layer = avg_pool 3 stride=2 padding=1
layer = zero_pad 1
layer = flatten
layer = dense 12 parallel=row relu
layer = dense 10
)";

std::string norms(const std::string& first, const std::string& second) {
  return config_of(
      "layer = conv 8 3 stride=2\nlayer = residual\nlayer = conv 8 3 padding=same\n"
      "layer = batch_norm sync=" +
      first +
      " relu\nlayer = conv 8 3 padding=same\n"
      "layer = batch_norm sync=" +
      second + "\nlayer = end relu\nlayer = max_pool 5\nlayer = flatten\nlayer = dense 10\n");
}

/// With settings that must not change a bit.
std::vector<std::string> varied(std::string_view grids) {
  return grids::varied(grids,
                       std::vector{Cycle{1,
                                         {"parallel.schedule=1f1b", "parallel.schedule=gpipe",
                                          "parallel.schedule=zb-h1", "parallel.schedule=zb-h2"}},
                                   Cycle{2, {"data.reader_threads=1", "data.reader_threads=3"}},
                                   Cycle{1, {"run.threads=1", "run.threads=1", "run.threads=2"}},
                                   Cycle{3, {"parallel.bucket=4", "parallel.bucket=0.01"}},
                                   Cycle{1, {"train.repeat_every=2"}}});
}

constexpr const char* kGrids = "2x1x1 4x1x1 1x2x1 1x4x1 1x1x2 2x2x1 2x1x2 2x2x2";

void has_running_statistics(const Result& result) {
  EXPECT_EQ(result.weight("conv1.weight").shape, (Shape{32, 3, 3, 3}));
  EXPECT_EQ(result.weight("batch_norm1.running_var").shape, Shape{64});
  EXPECT_THAT(result.weight("batch_norm1.running_mean").values(), testing::Each(testing::Ne(0.0)));
  for (const auto& [name, tensor] : result.tensors) {
    EXPECT_FALSE(name.starts_with("optimizer/") && name.find("running") != std::string::npos);
  }
}

void keeps_frozen_layers(const Result& result) {
  // Without an update in the first step, frozen weights are all that is equal to the start.
  const Result first = train(
      cut_convolutions(),
      {"optimizer.frozen=conv1.*,conv2.*,conv4.*,batch_norm1.*,dense1.weight", "train.steps=1"});
  std::set<std::string> same;
  for (const auto& [name, tensor] : result.tensors) {
    if (name.starts_with("weights/") && first.tensors.at(name) == tensor) {
      same.insert(name.substr(8));
    }
  }
  EXPECT_EQ(same, (std::set<std::string>{"batch_norm1.bias", "batch_norm1.weight", "conv1.bias",
                                         "conv1.weight", "conv2.bias", "conv2.weight", "conv4.bias",
                                         "conv4.weight", "dense1.weight"}));
}

const std::string kResnet = config_of("preset = resnet20\n");
const Settings kSync{"model.sync_batch_norm=yes"};

TEST(BatchNorm, TakesTheStatisticsThatItsLayersAskFor) {
  std::set<double> losses;
  for (const char* first : {"yes", "no"}) {
    for (const char* second : {"yes", "no"}) {
      losses.insert(train(norms(first, second), {"train.steps=1"}).losses().front());
    }
  }
  EXPECT_EQ(losses.size(), 4U);
}

TEST(BatchNorm, OfAllLanesIsThatOfOneMicrobatch) {
  const Settings exact{"numerics.dtype=float64", "optimizer.kind=sgd"};
  const Result whole = train(kResnet, joined(exact, {"numerics.lanes=1", "batch.micro=16"}));
  const Result lanes = train(kResnet, joined(joined(exact, kSync), {"batch.micro=4"}), "2x1x1");
  EXPECT_THAT(lanes.losses(), testing::Pointwise(testing::DoubleNear(1e-9), whole.losses()));
  EXPECT_THAT(lanes.numbers("train", "grad_norm"),
              testing::Pointwise(testing::DoubleNear(1e-7), whole.numbers("train", "grad_norm")));
  for (const auto& [name, tensor] : whole.tensors) {
    if (name.find("running") != std::string::npos) {
      const std::vector<double> expected = tensor.values();
      const std::vector<double> found = lanes.tensors.at(name).values();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], 1e-9 + 1e-7 * std::abs(expected[i])) << name;
      }
    }
  }
}

TEST(BatchNorm, OfAllLanesIsTheSameInFastMode) {
  const Settings two = joined(kSync, {"numerics.lanes=2", "numerics.shards=1"});
  const std::vector<double> invariant = train(kResnet, two, "2x1x1").losses();
  const std::vector<double> fast =
      train(kResnet, joined(two, {"numerics.mode=fast"}), "2x1x1").losses();
  // A sum over two ranks is the same in any order.
  for (std::size_t i = 0; i < invariant.size(); ++i) {
    EXPECT_NEAR(fast[i], invariant[i], 1e-6 * invariant[i]);
  }
}

TEST(Augmentation, ChangesWhatIsLearned) {
  const std::string preset = config_of("preset = cifar10-cnn\n");
  EXPECT_NE(train(preset, {}).losses(),
            train(preset, {"data.flip=off", "data.crop_padding=0", "data.cutout=0"}).losses());
}

}  // namespace

std::string cut_convolutions() {
  // The network of the preset cifar10-cnn, with dropout.
  return config_of(R"(layer = conv 32 3 relu padding=same parallel=column
layer = conv 32 3 relu padding=same parallel=row
layer = max_pool 2
layer = conv 64 3 relu padding=same parallel=column
layer = batch_norm
layer = conv 64 3 relu padding=same parallel=row
layer = max_pool 2
layer = dropout 0.2
layer = flatten
layer = dense 512 relu parallel=column
layer = dense 10 parallel=row
)");
}

std::vector<Case> convolution_cases() {
  const std::string stays = config_of(kStaysCut);
  // The second split sends what is added, what a shortcut reads, and both bodies' outputs. The
  // chunks of the third hand on a gradient that none of their layers reads.
  const std::vector<std::string> inside{
      "1x2x1 parallel.split=conv1,residual4.conv2",
      "1x4x1 parallel.split=conv1,residual1.batch_norm1,residual4.shortcut.zero_channels1,"
      "residual4.end",
      "1x2x1 parallel.schedule=zb-v parallel.split=conv1,residual1.batch_norm1,residual1.conv2,"
      "residual1.batch_norm2"};
  const Settings six = joined(kSync, {"numerics.lanes=6", "batch.global=24", "train.steps=2"});
  const std::string norm_split = " parallel.split=conv1,residual1.conv2";
  std::vector<Case> cases{
      {"Cifar10Cnn",
       cut_convolutions(),
       {},
       varied("2x1x1 4x1x1 1x2x1 1x5x1 1x1x2 2x3x1 2x1x2 "
              "2x2x2 1x3x2"),
       has_running_statistics},
      {"Resnet20", kResnet, {}, joined(varied(kGrids), inside)},
      {"Resnet20JoinedLanes", kResnet, kSync, varied("2x1x1 4x1x1 1x3x1 2x2x1 2x2x2")},
      {"Resnet20SixLanes", kResnet, six,
       joined(varied("2x1x1 3x1x1 6x1x1 3x2x1"),
              {"1x3x1 parallel.schedule=interleaved",
               "2x2x1 parallel.schedule=zb-v train.repeat_every=2"})},
      {"Resnet20Resumed",
       kResnet,
       {},
       {"2x1x2 stop=3:2 | 1x3x1", "1x5x1 train.steps=2 | 2x2x1", "4x1x1 stop=0:1 | 1x1x2"}},
      {"Resnet20JoinedLanesResumed",
       kResnet,
       kSync,
       {"2x1x2 train.steps=2 | 4x1x1", "1x3x1 stop=1:1 | 2x1x2"}},
      {"NormsOfSomeLanes",
       norms("yes", "no"),
       {},
       {"4x1x1", "1x2x1" + norm_split, "2x2x1 parallel.schedule=gpipe" + norm_split, "1x3x1",
        "2x5x1"}},
      {"FrozenConvolutions",
       cut_convolutions(),
       {"optimizer.frozen=conv1.*,conv2.*,conv4.*,batch_norm1.*,dense1.weight"},
       {"2x1x2 train.repeat_every=2", "2x2x1 parallel.schedule=zb-h2 parallel.bucket=0.01",
        "1x3x2"},
       keeps_frozen_layers}};
  for (const std::string dtype : {"float32", "float64", "bfloat16"}) {
    cases.push_back({"ChannelsStaySplit_" + dtype,
                     stays,
                     {"numerics.dtype=" + dtype},
                     varied("1x1x2 2x3x1 2x2x2 4x1x2 1x5x1")});
    cases.push_back({"ChannelsStaySplitJoinedLanes_" + dtype, stays,
                     joined(kSync, {"numerics.dtype=" + dtype}),
                     varied("4x1x1 2x3x1 2x2x2 1x5x2")});
  }
  return cases;
}

}  // namespace strata::grids
