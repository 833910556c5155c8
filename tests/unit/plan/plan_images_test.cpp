// What a plan decides, and refuses, for data sets of images.
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/plan/plan.hpp"

#include "error_of.hpp"

namespace strata::plan::plan_images_test {
namespace {

io::DatasetInfo images(const Shape& shape = {3, 8, 6}) {
  return {
      .path = "train.h5", .samples = 100, .input_shape = shape, .target_shape = {}, .classes = 4};
}

config::RunConfig config_of(nn::Preset preset) {
  config::RunConfig config;
  config.model.transformer.preset = preset;
  config.batch.global = 8;
  config.batch.micro = 2;
  config.train.steps = 3;
  return config;
}

config::RunConfig flat() {
  config::RunConfig config = config_of(nn::Preset::kNone);
  config.model.layers = {"flatten", "dense 4"};
  return config;
}

std::string refusal_of(const config::RunConfig& config, const io::DatasetInfo& data,
                       std::int64_t ranks = 1) {
  return test::error_of([&] { static_cast<void>(prepare(config, ranks, data, {})); },
                        ExitCode::kUsage);
}

TEST(PrepareImages, PutsChannelsLast) {
  EXPECT_EQ(prepare(flat(), 1, images(), {}).model->layer(0).input().shape, (Shape{8, 6, 3}));
}

TEST(PrepareImages, AugmentsWithinThem) {
  config::RunConfig config = flat();
  config.data.augmentation = {.flip = Switch::kOn, .crop_padding = 6, .cutout = 6};
  EXPECT_NO_THROW((void)prepare(config, 1, images(), {}));
  config.data.augmentation.cutout = 7;
  EXPECT_THAT(refusal_of(config, images()),
              testing::HasSubstr("data.cutout is 7, but the images of train.h5 are 8 x 6"));
  EXPECT_THAT(refusal_of(config, images({144})),
              testing::AllOf(testing::HasSubstr("data.flip"), testing::HasSubstr("are for images"),
                             testing::HasSubstr("leave them out")));
}

TEST(PrepareImages, TakesClassesFromTheData) {
  const Plan plan = prepare(config_of(nn::Preset::kResnet20), 1, images({3, 32, 32}), {});
  EXPECT_EQ(plan.model->output().shape, Shape{4});
}

TEST(PrepareImages, RefusesPresetsThatDoNotFit) {
  EXPECT_THAT(refusal_of(config_of(nn::Preset::kLenet), images({144})),
              testing::AllOf(testing::HasSubstr("model.preset is lenet"), testing::HasSubstr("144"),
                             testing::HasSubstr("import images")));
  EXPECT_THAT(
      refusal_of(config_of(nn::Preset::kLenet), images()),
      testing::AllOf(testing::HasSubstr("model.preset is lenet, made for images of 1 x 28"),
                     testing::HasSubstr("3 x 8 x 6"), testing::HasSubstr("reaches over 5")));
  config::RunConfig sized = config_of(nn::Preset::kLenet);
  sized.model.transformer.width = 64;
  EXPECT_THAT(refusal_of(sized, images({1, 28, 28})),
              testing::AllOf(testing::HasSubstr("model.preset is lenet"),
                             testing::HasSubstr("sizes of a transformer")));
}

TEST(PrepareImages, RefusesToSyncBatchNormsThatAreNotThere) {
  config::RunConfig config = flat();
  config.model.sync_batch_norm = Switch::kOn;
  EXPECT_THAT(refusal_of(config, images()),
              testing::AllOf(testing::HasSubstr("model.sync_batch_norm is set"),
                             testing::HasSubstr("the model has no batch_norm layer"),
                             testing::HasSubstr("leave it out")));
  config.model.layers = {"batch_norm", "flatten", "dense 4"};
  EXPECT_NO_THROW((void)prepare(config, 1, images(), {}));
}

config::RunConfig with_graphs(std::int64_t data, std::int64_t tensor, const std::string& norm) {
  config::RunConfig config = flat();
  config.model.layers = {norm, "flatten", "dense 8 relu parallel=column", "dense 4 parallel=row"};
  config.parallel.data = data;
  config.parallel.tensor = tensor;
  config.run.cuda_graphs = config::Switch::kOn;
  return config;
}

TEST(PrepareImages, RefusesGraphsOfPassesWithMessages) {
  EXPECT_THAT(refusal_of(with_graphs(1, 2, "batch_norm"), images(), 2),
              testing::AllOf(testing::HasSubstr("run.cuda_graphs is set"),
                             testing::HasSubstr("parallel.tensor is 2"),
                             testing::HasSubstr("choose another grid")));
  // Said by the layer itself or for all.
  config::RunConfig by_layer = with_graphs(2, 1, "batch_norm sync=on");
  config::RunConfig by_model = with_graphs(2, 1, "batch_norm");
  by_model.model.sync_batch_norm = Switch::kOn;
  for (const config::RunConfig& config : {by_layer, by_model}) {
    EXPECT_THAT(refusal_of(config, images(), 2),
                testing::AllOf(testing::HasSubstr("run.cuda_graphs is set"),
                               testing::HasSubstr("batch_norm over all lanes puts messages"),
                               testing::HasSubstr("parallel.data = 1")));
  }
  EXPECT_NO_THROW((void)prepare(with_graphs(2, 1, "batch_norm"), 2, images(), {}));
  by_layer.parallel.data = 1;
  EXPECT_NO_THROW((void)prepare(by_layer, 1, images(), {}));
}

TEST(PrepareImages, PlansPresetsWithoutData) {
  const config::RunConfig config = config_of(nn::Preset::kResnet50);
  const Plan plan = prepare(config, 0, assumed_data(config), {});
  EXPECT_EQ(plan.model->layer(0).input().shape, (Shape{224, 224, 3}));
  EXPECT_EQ(plan.model->output().shape, Shape{1000});
}

TEST(PrepareImages, WarnsOfTensorRanksThatAllDoTheSame) {
  config::RunConfig config = config_of(nn::Preset::kResnet20);
  const auto text = [&](std::int64_t tensor) {
    config.parallel.tensor = tensor;
    return plan_text(prepare(config, 0, images({3, 32, 32}), {}));
  };
  EXPECT_THAT(text(2),
              testing::AllOf(testing::HasSubstr("warning: no layer is split, so all 2 ranks"),
                             testing::HasSubstr("set parallel.tensor to 1, or split layers")));
  EXPECT_THAT(text(1), testing::Not(testing::HasSubstr("warning")));
  config = flat();
  config.model.layers = {"conv 8 3 parallel=column", "flatten", "dense 4 parallel=row"};
  EXPECT_THAT(text(2), testing::Not(testing::HasSubstr("warning")));
}

}  // namespace
}  // namespace strata::plan::plan_images_test
