#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "strata/ops/instruction_set.hpp"
#include "strata/train/checkpointing.hpp"
#include "strata/train/rank_state.hpp"

#include "../io/data_files.hpp"
#include "error_of.hpp"

namespace strata::train::test::train_test {
namespace {

/// A checkpoint of the weights of a layer "dense 3 bias=off" of 5 inputs.
io::Checkpoint checkpoint_with(const io::test::TemporaryDirectory& directory,
                               const nlohmann::json& metadata) {
  const std::vector<float> weights(15);
  const std::filesystem::path root = directory / "checkpoints";
  const std::vector<io::TensorSlice> slices{
      {.name = "weights/dense1.weight",
       .global_shape = {3, 5},
       .range = {0, 15},
       .data = ConstTensorView(std::span<const float>(weights), Shape{15})}};
  std::filesystem::remove_all(root / "step-00000001");
  const std::vector<io::PartRecord> parts{io::write_part(io::begin_checkpoint(root, 1), 0, slices)};
  return io::Checkpoint::open(io::commit_checkpoint(root, 1, parts, metadata));
}

TEST(OldCheckpoints, AreReadWithoutData) {
  const io::test::TemporaryDirectory directory;
  config::RunConfig config;
  config.model.layers = {"dense 3 bias=off"};
  config.batch.global = 4;
  config.train.steps = 1;
  const io::DatasetInfo data{
      .samples = 10, .input_shape = {5}, .input_dtype = DType::kFloat32, .classes = 3};
  const plan::Plan plan = plan::prepare(config, 1, data, {});
  const auto with_metadata = [&](const nlohmann::json& metadata) {
    return checkpoint_with(directory, metadata);
  };
  const io::Checkpoint checkpoint = with_metadata({{"layers", {"dense 3 bias=off"}}});
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
    refused({{"layers", {"dense 3 bias=off"}}, {"identity", wrong}},
            "has no valid 'identity' in its metadata",
            [&](const io::Checkpoint& read) { require_continues(plan, read); });
  }
  refused({{"instruction_set", 3}}, "has no valid 'instruction_set' in its metadata",
          [&](const io::Checkpoint& read) { (void)bits_change(plan, read); });
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

TEST(BitsChange, NamesWhatGivesOtherBits) {
  const io::test::TemporaryDirectory directory;
  config::RunConfig config;
  config.model.layers = {"dense 3"};
  config.batch.global = 4;
  config.train.steps = 1;
  const io::DatasetInfo data{
      .samples = 10, .input_shape = {5}, .input_dtype = DType::kFloat32, .classes = 3};
  const std::string here = ops::onednn_version();
  const std::string set(name_of(ops::used_instruction_set()));
  struct Case {
    nlohmann::json metadata;
    std::string words;  ///< empty: no warning
  };
  for (const auto& [metadata, words] : std::vector<Case>{
           {{{"instruction_set", set}, {"onednn", here}}, ""},
           {nlohmann::json::object(), ""},
           {{{"instruction_set", set}}, ""},
           {{{"onednn", "2.5.0"}},
            " was made with oneDNN 2.5.0 and the run goes on with oneDNN " + here +
                ", which may give other bits in float32: "},
           {{{"instruction_set", "later"}, {"onednn", here}},
            " was made with numerics.isa = later and the run goes on with numerics.isa = " + set +
                ", which gives other bits"},
           {{{"instruction_set", "later"}, {"onednn", "9.0.0"}},
            "a run that stays with oneDNN 9.0.0 and numerics.isa = later"}}) {
    nlohmann::json stored = metadata;
    // Of an earlier version.
    EXPECT_THAT(bits_change(plan::prepare(config, 1, data, {}), checkpoint_with(directory, stored)),
                testing::HasSubstr(" was made with gradient norms added block after block"));
    stored["gradient_norm"] = "tree";
    const io::Checkpoint checkpoint = checkpoint_with(directory, stored);
    config.numerics.dtype = DType::kFloat32;
    const std::string text = bits_change(plan::prepare(config, 1, data, {}), checkpoint);
    EXPECT_EQ(text.empty(), words.empty()) << metadata;
    EXPECT_THAT(text, testing::HasSubstr(words)) << metadata;
    config.numerics.dtype = DType::kFloat64;
    EXPECT_EQ(bits_change(plan::prepare(config, 1, data, {}), checkpoint), "") << "own code";
  }
}

TEST(InitialNames, AreTheCheckpointsWhereTheirLayersStay) {
  const io::test::TemporaryDirectory directory;
  config::RunConfig config;
  config.model.layers = {"dense 4", "dense 2"};
  config.batch.global = 4;
  config.train.steps = 1;
  io::DatasetInfo data{.samples = 10,
                       .input_shape = {2},
                       .input_dtype = DType::kFloat32,
                       .classes = 2,
                       .class_names = {"bird", "cat"},
                       .column_names = {"a", "b=x", "y"},
                       .table = {{"a", {}, 0.5}, {"b", {"x"}}}};
  const io::Checkpoint checkpoint = checkpoint_with(
      directory, checkpoint_metadata(plan::prepare(config, 1, data, {}), {.config_text = ""}, 1));
  EXPECT_EQ(data_of(checkpoint)->column_names, data.column_names);
  const std::vector<io::TableColumn> table = data_of(checkpoint)->table;
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(table[0].name, "a");
  EXPECT_EQ(table[0].missing, 0.5);
  EXPECT_EQ(table[1].categories, data.table[1].categories);
  EXPECT_TRUE(std::isnan(table[1].missing));

  config.checkpoint.init = "elsewhere";
  data.class_names = {"dog", "emu"};
  data.column_names = {"c", "d", "z"};
  using Names = std::vector<std::string>;
  for (const auto& [except, classes, columns] : std::vector<std::tuple<std::string, Names, Names>>{
           {"", {"bird", "cat"}, {"a", "b=x", "y"}},
           {"dense2.weight", {"dog", "emu"}, {"a", "b=x", "z"}},
           {"dense1.*", {"bird", "cat"}, {"c", "d", "y"}},
           {"dense*", {"dog", "emu"}, {"c", "d", "z"}}}) {
    config.checkpoint.init_except = except;
    const NamesOfCheckpoint names = initial_names(plan::prepare(config, 1, data, {}), checkpoint);
    EXPECT_EQ(names.data.class_names, classes) << except;
    EXPECT_EQ(names.data.column_names, columns) << except;
    EXPECT_THAT(names.advice, testing::HasSubstr("dense1.* for columns, dense2.* for classes"));
  }
}

TEST(DigestOfSlices, DoesNotDependOnTheCut) {
  ops::Context context(1);
  const Shape shape{4, 6, 3};
  std::vector<float> values(72);
  const auto hash_of_cut = [&](const std::string& name, std::int64_t dimension) {
    Digest sum;
    const std::int64_t inner = dimension == 2 ? 1 : dimension == 1 ? 3 : 18;
    const std::int64_t extent =
        shape[static_cast<std::size_t>(std::max<std::int64_t>(dimension, 0))];
    for (std::int64_t first = 0; first < extent; first += 2) {
      const std::int64_t count = std::min<std::int64_t>(2, extent - first);
      std::vector<float> part;
      for (std::int64_t i = 0; i < 72; ++i) {
        if (i / inner % extent >= first && i / inner % extent < first + count) {
          part.push_back(values[static_cast<std::size_t>(i)]);
        }
      }
      for (std::int64_t begin = 0; begin < std::ssize(part); begin += 5) {
        const std::int64_t end = std::min<std::int64_t>(begin + 5, std::ssize(part));
        const std::span<const float> piece = std::span(part).subspan(
            static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        sum += digest_of({.name = name,
                          .global_shape = shape,
                          .range = {begin, end},
                          .data = ConstTensorView(piece, Shape{end - begin}),
                          .shard = {dimension, first, count}},
                         context.stream());
      }
    }
    return sum;
  };
  std::iota(values.begin(), values.end(), 0.5F);
  const auto whole = [&](const std::string& name) {
    return digest_of({.name = name,
                      .global_shape = shape,
                      .range = {0, 72},
                      .data = ConstTensorView(std::span<const float>(values), Shape{72})},
                     context.stream());
  };
  const Digest expected = whole("w");
  for (const std::int64_t dimension : {0, 1, 2}) {
    EXPECT_EQ(hash_of_cut("w", dimension), expected) << dimension;
  }
  EXPECT_NE(whole("v"), expected);
  std::swap(values[3], values[4]);
  EXPECT_NE(whole("w"), expected);
  std::swap(values[3], values[4]);
  values[70] = -values[70];
  EXPECT_NE(whole("w"), expected);
}

}  // namespace
}  // namespace strata::train::test::train_test
