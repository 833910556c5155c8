// Convolutional networks by name, and what image layers say where they cannot be.
#include "strata/nn/convnet.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/nn/layer_trace.hpp"
#include "strata/nn/model.hpp"

#include "error_of.hpp"
#include "published_sizes.hpp"

namespace strata::nn::convnet_test {
namespace {

Model model_of(Preset preset) {
  const PublishedImages images = published_images(preset);
  return Model({.layers = convnet_layers(preset, images.classes),
                .input_shape = images.shape,
                .outputs = images.classes});
}

TEST(Convnets, HaveTheirPublishedNumberOfParameters) {
  test::expect_parameter_counts({{Preset::kLenet, 431'080},
                                 {Preset::kCifar10Cnn, 2'168'362},
                                 {Preset::kResnet20, 269'722},
                                 {Preset::kResnet56, 853'018},
                                 {Preset::kResnet18, 11'689'512},
                                 {Preset::kResnet50, 25'557'032},
                                 {Preset::kVgg16, 138'357'544}},
                                model_of);
}

ModelOptions images(std::vector<std::string> layers, const Shape& shape = {3, 8, 6},
                    std::int64_t shards = 1) {
  layers.insert(layers.end(), {"global_avg_pool", "dense 4"});
  return {.layers = std::move(layers), .input_shape = shape, .outputs = 4, .shards = shards};
}

std::string table_of(const ModelOptions& options) {
  const Model model(options);
  return model_table(model, split_model(model, layer_costs(model), 1, "auto"));
}

TEST(ImageShapes, AreWrittenChannelsFirst) {
  EXPECT_THAT(table_of(images({"conv 5 3", "max_pool 2", "zero_pad 1"})),
              testing::AllOf(testing::HasSubstr("conv 5 3x3"), testing::HasSubstr("5 x 6 x 4"),
                             testing::HasSubstr("5 x 3 x 2"), testing::HasSubstr("5 x 5 x 4"),
                             testing::HasSubstr("input 3 x 8 x 6")));
}

TEST(ImageShapes, FollowPaddingAndStride) {
  // Shapes of Keras: same gives the input over the stride rounded up.
  EXPECT_THAT(table_of(images({"conv 5 3 stride=2 padding=same"}, {3, 7, 6})),
              testing::HasSubstr("5 x 4 x 3"));
  EXPECT_THAT(table_of(images({"conv 5 3 stride=2"}, {3, 7, 6})), testing::HasSubstr("5 x 3 x 2"));
  EXPECT_THAT(table_of(images({"conv 5 3x2 padding=1 dilation=2x1"}, {3, 7, 6})),
              testing::HasSubstr("5 x 5 x 7"));
  EXPECT_THAT(table_of(images({"avg_pool 3 stride=2 padding=same"}, {3, 8, 6})),
              testing::HasSubstr("3 x 4 x 3"));
}

/// The refusal has each of the words.
void expect_words(const ModelOptions& options, const std::vector<std::string>& words) {
  const std::string text =
      strata::test::error_of([&] { const Model model(options); }, ExitCode::kUsage);
  for (const std::string& word : words) {
    EXPECT_THAT(text, testing::HasSubstr(word));
  }
}

TEST(ImageErrors, OfWindows) {
  expect_words(images({"conv 5 9"}),
               {"reaches over 9", "height of its input is 8", "padding=same"});
  expect_words(images({"conv 5 5 dilation=2 padding=0"}), {"reaches over 9", "8"});
  expect_words(images({"conv 5 3 padding=some"}), {"same, valid or a whole number", "\"some\""});
  expect_words(images({"max_pool 2 padding=2"}), {"padding is 2", "below its window of 2"});
  expect_words(images({"avg_pool 2 dilation=2"}), {"no dilation"});
  expect_words(images({"max_pool 17 padding=same"}, {3, 20, 20}), {"289 elements", "at most 256"});
  expect_words(images({"conv 5"}), {"window"});
  expect_words(images({"flatten", "conv 5 3"}), {"its input is 144", "must be an image"});
}

TEST(ImageErrors, OfChannels) {
  expect_words(images({"conv 4 3 groups=2"}), {"3 input and 4 output channels", "groups=2"});
  expect_words(images({"group_norm 2"}), {"3 channels", "2 groups"});
  expect_words(images({"zero_channels 2"}), {"3 channels already"});
  expect_words(images({"conv 6 3 parallel=column", "conv 4 1 parallel=row"}, {3, 8, 6}, 4),
               {"6 outputs", "numerics.shards"});
  expect_words(images({"conv 6 3 groups=3 parallel=column"}, {3, 8, 6}, 2), {"in groups"});
  expect_words(images({"conv 8 3 parallel=column", "group_norm 3"}, {3, 8, 6}, 2),
               {"8 channels", "3 groups"});
  expect_words(images({"conv 8 3 parallel=column", "zero_channels 9"}, {3, 8, 6}, 2),
               {"split by feature"});
}

TEST(ImageErrors, OfResidualBlocks) {
  expect_words(images({"residual", "conv 5 3 padding=same", "end"}),
               {"5 x 8 x 6", "its input gives 3 x 8 x 6", "layer = shortcut"});
  expect_words(images({"residual", "conv 5 1", "shortcut", "conv 5 1 stride=2", "end"}),
               {"5 x 8 x 6", "shortcut gives 5 x 4 x 3"});
  expect_words(images({"residual", "end"}), {"no layer between"});
  expect_words(images({"end"}), {"no place here"});
  expect_words(images({"shortcut"}), {"no place here"});
  expect_words(images({"residual", "max_pool 8x6", "flatten", "end"}), {"no place in a residual"});
  expect_words(images({"residual", "tanh", "shortcut", "tanh", "shortcut", "end"}),
               {"at most one shortcut"});
  expect_words(images({"zero_pad 2000"}), {"border is 2000", "1024"});
  expect_words(images({"conv 4 5000 padding=same"}), {"reaches over 5000", "smaller window"});
  ModelOptions open = images({});
  open.layers = {"residual", "conv 3 1"};
  expect_words(open, {"\"residual\"", "no \"layer = end\""});
  expect_words(images({"residual", "tanh", "end tanh"}), {"only relu can follow"});
  expect_words(images({"residual name=a", "conv 3 1 name=b", "conv 3 1 name=b", "end"}),
               {"the name \"a.b\" is taken already"});
}

TEST(BatchNormErrors, OfSync) {
  expect_words(images({"batch_norm sync=maybe"}),
               {"batch_norm sync=maybe", "sync is one of off, on", "\"maybe\""});
}

TEST(BatchNormErrors, OfMomentum) {
  for (const char* momentum : {"0", "1.5", "-1"}) {
    expect_words(images({std::string("batch_norm momentum=") + momentum}), {"momentum is"});
  }
}

}  // namespace
}  // namespace strata::nn::convnet_test
