// What a directory of Hugging Face's says beside its weights.
#include "strata/exchange/model_files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "../io/text_files.hpp"
#include "huggingface_config.hpp"

namespace strata::exchange::test::model_files_test {
namespace {

using nlohmann::json;

TEST(HuggingfaceConfig, KeepsWhatDoesNotDescribeTheWeights) {
  PublishedModel model;
  model.options.preset = nn::Preset::kLlama;
  model.options.blocks = 1;
  model.options.width = 8;
  model.options.heads = 2;
  model.options.context = 32;
  model.options.vocabulary = 96;
  model.options = nn::resolved(model.options);
  const auto config_of = [&](const json& given, const DocumentEnds& ends) {
    return huggingface_config(model, io::StoredType::kFloat16, ends,
                              {{"config.json", given.dump()}});
  };
  const json given{{"eos_token_id", {95, 93}},
                   {"pad_token_id", nullptr},
                   {"max_position_embeddings", 64},
                   {"rope_parameters", {{"rope_type", "linear"}, {"factor", 8.0}}},
                   {"dtype", "bfloat16"},
                   {"vocab_size", 1},
                   {"other", {1.5, "x"}}};
  const json config = config_of(given, {.begin = 1, .end = 2});
  const json expected{{"eos_token_id", {95, 93}},
                      {"pad_token_id", nullptr},
                      {"bos_token_id", 1},
                      {"max_position_embeddings", 64},
                      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}},
                      {"dtype", "float16"},
                      {"vocab_size", 96},
                      {"other", {1.5, "x"}}};
  for (const auto& [key, value] : expected.items()) {
    EXPECT_EQ(config.at(key), value) << key;
  }
  EXPECT_EQ(config_of({{"max_position_embeddings", 16}}, {}).at("max_position_embeddings"), 32);
  // Without a key the program that reads the file has its own ids.
  EXPECT_FALSE(config_of(json::object(), {}).contains("eos_token_id"));
  EXPECT_EQ(huggingface_config(model, io::StoredType::kFloat16, {}, {}).at("eos_token_id"), json());
  EXPECT_EQ(generation_config(given),
            (json{{"_from_model_config", true}, {"eos_token_id", {95, 93}}}));
}

TEST(EndTokens, AreThoseOfEveryFile) {
  const io::test::TemporaryDirectory directory;
  io::test::write_pairs(directory, io::test::small_pairs());
  const io::Tokenizer tokenizer =
      io::Tokenizer::gpt2(directory / "encoder.json", directory / "vocab.bpe");
  const std::vector<float> weights(2);
  const std::vector<io::TensorSlice> slices{
      {.name = "weights/a",
       .global_shape = {2},
       .range = {0, 2},
       .data = ConstTensorView(std::span<const float>(weights), Shape{2})}};
  const auto ends_with = [&](const json& files) {
    const std::filesystem::path root = directory / "checkpoints";
    std::filesystem::remove_all(root);
    const std::vector<io::PartRecord> parts{
        io::write_part(io::begin_checkpoint(root, 1), 0, slices)};
    return end_tokens(
        io::Checkpoint::open(io::commit_checkpoint(root, 1, parts, {{"model_files", files}})),
        tokenizer);
  };
  using Ids = std::set<std::int64_t>;
  EXPECT_EQ(ends_with(json::object()), Ids{260});
  EXPECT_EQ(ends_with({{"config.json", R"({"eos_token_id": [5, 6]})"},
                       {"generation_config.json", R"({"eos_token_id": 7})"},
                       {"tokenizer_config.json", R"({"eos_token": {"content": "!"}})"}}),
            (Ids{5, 6, 7, 33, 260}));
  EXPECT_EQ(ends_with({{"tokenizer_config.json", R"({"eos_token": "\""})"}}), (Ids{34, 260}));
  // A text of several tokens is none.
  EXPECT_EQ(ends_with({{"tokenizer_config.json", R"({"eos_token": "!!"})"}}), Ids{260});
  EXPECT_THAT(io::test::error_of([&] { (void)ends_with(3); }, ExitCode::kCheckpoint),
              testing::HasSubstr("has no valid 'model_files' in its metadata"));
}

}  // namespace
}  // namespace strata::exchange::test::model_files_test
