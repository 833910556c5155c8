#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../io/data_files.hpp"
#include "error_of.hpp"
#include "small_run.hpp"

namespace strata::train::test {
namespace {

/// A run of a few steps over 40 images of 4 x 5 in three classes: four lanes of two microbatches, a
/// batch that the samples end in the middle of, several buckets, and every kind of layer.
class SmallRun : public testing::Test, protected RunsInADirectory {
 protected:
  SmallRun() {
    read_data(io::test::import_images(directory_, 52, "40,12"));
    set_optimizer(0.02, 5);
    base_.model.layers = {"flatten", "dense 130 relu", "dropout 0.3", "layer_norm",
                          "dense 7", "gelu",           "dropout 0.1", "dense 3"};
    base_.batch.global = 24;
    base_.batch.micro = 3;
    base_.numerics.lanes = 4;
    base_.checkpoint.every = 3;
  }
};

TEST_F(SmallRun, RefusesToContinueAnotherRun) {
  run_on(config("run"), {1, 1});
  const auto refused = [&](const std::function<void(plan::RunConfig&)>& change, ExitCode code) {
    plan::RunConfig other = config("run");
    other.run.resume = plan::Resume::kAuto;
    change(other);
    return strata::test::error_of([&] { run_on(other, {1, 1}); }, code);
  };
  EXPECT_NE(refused([](plan::RunConfig& c) { c.run.seed = 6; }, ExitCode::kUsage)
                .find("there run.seed is 5, here it is 6"),
            std::string::npos);
  EXPECT_NE(refused([](plan::RunConfig& c) { c.numerics.lanes = 2; }, ExitCode::kUsage)
                .find("numerics.lanes is 2"),
            std::string::npos);
  EXPECT_NE(
      refused([](plan::RunConfig& c) { c.model.layers[4] = "dense 8"; }, ExitCode::kCheckpoint)
          .find("another model"),
      std::string::npos);
}

TEST_F(SmallRun, EndsWhenTheLossIsNotFinite) {
  plan::RunConfig run = config("diverges");
  run.optimizer.options = {};
  run.optimizer.clip_norm = 0.0;
  run.schedule = {.peak = 1e30, .decay_steps = 0};
  const std::string text = strata::test::error_of(
      [&] {
        run_on(run, {2, 2});
      },
      ExitCode::kDiverged);
  EXPECT_NE(text.find("the run diverged: at step 2"), std::string::npos) << text;
}

TEST_F(SmallRun, AccountsForEveryStepsTime) {
  for (const nlohmann::json& line : run_on(config("times"), {2, 2})) {
    if (line.at("kind") != "train") {
      continue;
    }
    expect_parts_of_step(line, 0.0);
    EXPECT_GT(seconds_of(line, "compute"), 0.0);
    EXPECT_DOUBLE_EQ(line.at("samples_per_second").get<double>() * seconds_of(line, "step"), 24.0);
  }
}

TEST(OldCheckpoints, AreReadWithoutDataAndInTheirSpellingOfSwitches) {
  const io::test::TemporaryDirectory directory;
  plan::RunConfig config;
  config.model.layers = {"dense 3 bias=off"};
  config.batch.global = 4;
  config.train.steps = 1;
  const io::DatasetInfo data{
      .samples = 10, .input_shape = {5}, .input_dtype = DType::kFloat32, .classes = 3};
  const plan::Plan plan = prepare(config, 1, data, {});
  const std::vector<float> weights(15);
  const std::filesystem::path root = directory / "checkpoints";
  const std::vector<io::TensorSlice> slices{
      {.name = "weights/dense1.weight",
       .global_shape = {3, 5},
       .range = {0, 15},
       .data = ConstTensorView(std::span<const float>(weights), Shape{15})}};
  const auto with_metadata = [&](const nlohmann::json& metadata) {
    std::filesystem::remove_all(root / "step-00000001");
    const std::vector<io::PartRecord> parts{
        io::write_part(io::begin_checkpoint(root, 1), 0, slices)};
    return io::Checkpoint::open(io::commit_checkpoint(root, 1, parts, metadata));
  };
  const io::Checkpoint checkpoint = with_metadata({{"layers", {"dense 3 bias=no"}}});
  EXPECT_NO_THROW(require_same_model(plan, checkpoint));
  EXPECT_FALSE(data_of(checkpoint));

  for (const nlohmann::json& wrong : std::vector<nlohmann::json>{1, {1}, {{"a", 1}}}) {
    EXPECT_THAT(strata::test::error_of(
                    [&] {
                      require_same_model(plan, with_metadata({{"layers", wrong}}));
                    },
                    ExitCode::kCheckpoint),
                testing::HasSubstr("has no valid 'layers' in its metadata"))
        << wrong;
  }
  const nlohmann::json layers{"dense 3 bias=no"};
  for (const auto& wrong : std::vector<nlohmann::json>{
           {{"layers", layers}, {"identity", 1}}, {{"layers", layers}, {"identity", {"a", "b"}}}}) {
    EXPECT_THAT(strata::test::error_of([&] { require_continues(plan, with_metadata(wrong)); },
                                       ExitCode::kCheckpoint),
                testing::HasSubstr("has no valid 'identity' in its metadata"));
  }
  EXPECT_THAT(strata::test::error_of(
                  [&] {
                    (void)instruction_set_change(plan, with_metadata({{"instruction_set", 3}}));
                  },
                  ExitCode::kCheckpoint),
              testing::HasSubstr("has no valid 'instruction_set' in its metadata"));
  for (const nlohmann::json& grid : std::vector<nlohmann::json>{
           nullptr,
           {{"lanes", "1"}, {"shards", 1}, {"microbatch", 1}},
           {{"lanes", 1}},
           {{"lanes", 1}, {"shards", 1}, {"microbatch", 1}, {"loss_pieces", 0}},
           "text",
           {{"lanes", 0}, {"shards", 1}, {"microbatch", 1}}}) {
    EXPECT_THAT(strata::test::error_of(
                    [&] {
                      (void)virtual_grid_of(with_metadata({{"virtual_grid", grid}}));
                    },
                    ExitCode::kCheckpoint),
                testing::HasSubstr("virtual grid"))
        << grid;
  }
  // Of a version without numerics.loss_pieces.
  const nlohmann::json earlier{{"lanes", 1}, {"shards", 1}, {"microbatch", 1}};
  EXPECT_EQ(virtual_grid_of(with_metadata({{"virtual_grid", earlier}})).loss_pieces, 1);
}

}  // namespace
}  // namespace strata::train::test
