// What a directory of Hugging Face's says beside its weights.
#include "strata/exchange/model_files.hpp"

#include <map>
#include <string>
#include <vector>

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

/// A file of zeros with these tensors.
void write_tensors(const std::filesystem::path& path, const std::map<std::string, Shape>& shapes) {
  std::filesystem::remove(path);
  std::vector<io::TensorToStore> tensors;
  for (const auto& [name, shape] : shapes) {
    tensors.push_back({name, io::StoredType::kFloat32, shape});
  }
  auto file = io::TensorFileWriter::safetensors(path, tensors);
  for (const io::TensorToStore& tensor : tensors) {
    file.append(std::vector<std::byte>(static_cast<std::size_t>(tensor.shape.count()) * 4));
  }
  file.finish();
}

TEST(Composites, TensorsOfOtherPartsAreLeftOut) {
  const io::test::TemporaryDirectory directory;
  const json whole{{"model_type", "mistral3"},
                   {"eos_token_id", 2},
                   {"text_config",
                    {{"num_hidden_layers", 1},
                     {"hidden_size", 8},
                     {"num_attention_heads", 2},
                     {"num_key_value_heads", 1},
                     {"intermediate_size", 12},
                     {"max_position_embeddings", 16},
                     {"vocab_size", 11}}}};
  io::test::write_file(directory / "config.json", whole.dump());
  const std::string base = "model.";
  for (const bool older : {true, false}) {
    const auto in_file = [&](const std::string& name) {
      return older                    ? "language_model." + name
             : name.starts_with(base) ? "model.language_model." + name.substr(base.size())
                                      : name;
    };
    std::map<std::string, Shape> tensors{
        {(older ? "" : base) + "vision_tower.layers.0.weight", {3}},
        {(older ? "" : base) + "multi_modal_projector.norm.weight", {2}}};
    for (const PublishedTensor& tensor : published_tensors(
             read_huggingface_config(directory / "config.json"), MatrixOrder::kInputsFirst)) {
      tensors[in_file(tensor.name)] = tensor.shape;
    }
    const auto opened = [&](const std::string& without, const std::string& with) {
      std::map<std::string, Shape> changed = tensors;
      changed.erase(without);
      if (!with.empty()) {
        changed[with] = {4};
      }
      write_tensors(directory / "model.safetensors", changed);
      return open_model(directory.path(), std::nullopt);
    };
    const ForeignModel foreign = opened("", "");
    EXPECT_EQ(foreign.stored.size(), tensors.size() - 2);
    EXPECT_EQ(foreign.left_out.tensors, 2);
    EXPECT_EQ(foreign.left_out.bytes, 20);
    EXPECT_THAT(foreign.left_out.parts,
                testing::ElementsAre("multi_modal_projector", "vision_tower"));
    const json text = json::parse(foreign.texts.at("config.json"));
    EXPECT_EQ(text.at("model_type"), "mistral");
    EXPECT_EQ(text.at("eos_token_id"), 2);
    EXPECT_FALSE(text.contains("text_config"));
    const std::string norm = in_file("model.norm.weight");
    const std::string head = in_file("lm_head.weight");
    struct Change {
      std::string without;
      std::string with;
      std::string refusal;
    };
    const std::vector<Change> changes{
        {norm, "", "has no tensor " + norm + ", 8 was expected (the nearest is "},
        {head, "", "set tie_word_embeddings to true in text_config of config.json"},
        {"", in_file("model.layers.1.norm.weight"), "has the tensor " + in_file("model.layers.1.")},
        {"", "language_model.norm.weight", "has the tensor language_model.norm.weight (4)"},
        {"", "audio_tower.weight", "has the tensor audio_tower.weight (4)"},
        {"", "vision_tower", "has the tensor vision_tower (4)"}};
    for (const Change& change : changes) {
      EXPECT_THAT(
          io::test::error_of([&] { static_cast<void>(opened(change.without, change.with)); },
                             ExitCode::kData),
          testing::HasSubstr(change.refusal));
    }
  }
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
