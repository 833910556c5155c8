#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "strata/train/checkpointing.hpp"

#include "../io/data_files.hpp"
#include "error_of.hpp"

namespace strata::train::test {
namespace {

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

  using nlohmann::json;
  const auto refused = [&](const json& metadata, const char* words, const auto& read) {
    EXPECT_THAT(
        strata::test::error_of([&] { read(with_metadata(metadata)); }, ExitCode::kCheckpoint),
        testing::HasSubstr(words))
        << metadata;
  };
  for (const json& wrong : std::vector<json>{1, {1}, {{"a", 1}}}) {
    refused({{"layers", wrong}}, "has no valid 'layers' in its metadata",
            [&](const io::Checkpoint& read) { require_same_model(plan, read); });
  }
  for (const json& wrong : std::vector<json>{1, {"a", "b"}}) {
    refused({{"layers", {"dense 3 bias=no"}}, {"identity", wrong}},
            "has no valid 'identity' in its metadata",
            [&](const io::Checkpoint& read) { require_continues(plan, read); });
  }
  refused({{"instruction_set", 3}}, "has no valid 'instruction_set' in its metadata",
          [&](const io::Checkpoint& read) { (void)instruction_set_change(plan, read); });
  for (const json& grid :
       std::vector<json>{nullptr,
                         {{"lanes", "1"}, {"shards", 1}, {"microbatch", 1}},
                         {{"lanes", 1}},
                         {{"lanes", 1}, {"shards", 1}, {"microbatch", 1}, {"loss_pieces", 0}},
                         "text",
                         {{"lanes", 0}, {"shards", 1}, {"microbatch", 1}}}) {
    refused({{"virtual_grid", grid}}, "virtual grid", virtual_grid_of);
  }
  // Of a version without numerics.loss_pieces.
  const nlohmann::json earlier{{"lanes", 1}, {"shards", 1}, {"microbatch", 1}};
  EXPECT_EQ(virtual_grid_of(with_metadata({{"virtual_grid", earlier}})).loss_pieces, 1);
}

}  // namespace
}  // namespace strata::train::test
