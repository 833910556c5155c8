#include "strata/exchange/published_model.hpp"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strata/core/error.hpp"

#include "error_of.hpp"
#include "rows_once.hpp"

namespace strata::exchange::published_model_test {
namespace {

PublishedModel preset_model(nn::Preset preset) {
  return {.options = nn::resolved({.preset = preset})};
}

/// A preset, and its published numbers of tensors and weights.
struct PublishedCase {
  nn::Preset preset;
  std::int64_t tensors;
  std::int64_t weights;
};

class Published : public testing::TestWithParam<PublishedCase> {};

TEST_P(Published, TensorsAreThePublishedOnesAndHoldEveryRowOnce) {
  const PublishedModel model = preset_model(GetParam().preset);
  const auto tensors = published_tensors(model, MatrixOrder::kInputsFirst);
  EXPECT_EQ(std::ssize(tensors), GetParam().tensors);
  EXPECT_EQ(test::expect_rows_once(tensors), GetParam().weights);
}

TEST_P(Published, LinesReadBackToTheModel) {
  PublishedModel model = preset_model(GetParam().preset);
  model.options.epsilon = 1e-6;
  model.options.preset = nn::Preset::kGpt;
  EXPECT_EQ(published_model_of(layer_lines(model), model.options.context, model.options.vocabulary),
            model);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Published,
                         testing::Values(PublishedCase{nn::Preset::kGpt2M124, 148, 124'439'808},
                                         PublishedCase{nn::Preset::kGpt2M355, 292, 354'823'168},
                                         PublishedCase{nn::Preset::kGpt2M774, 436, 774'030'080},
                                         PublishedCase{nn::Preset::kGpt2M1558, 580, 1'557'611'200},
                                         PublishedCase{nn::Preset::kTinyllamaB1, 201,
                                                       1'100'048'384},
                                         PublishedCase{nn::Preset::kLlama2B7, 291, 6'738'415'616},
                                         PublishedCase{nn::Preset::kLlama3B8, 291, 8'030'261'248}));

TEST(PublishedNames, AreThoseOfTheirFiles) {
  const auto shapes_of = [](nn::Preset preset) {
    std::map<std::string, Shape> shapes;
    for (const PublishedTensor& tensor :
         published_tensors(preset_model(preset), MatrixOrder::kInputsFirst)) {
      shapes[tensor.name] = tensor.shape;
    }
    return shapes;
  };
  const auto gpt2 = shapes_of(nn::Preset::kGpt2M124);
  const auto llama3 = shapes_of(nn::Preset::kLlama3B8);
  const std::pair<const char*, Shape> of_gpt2[] = {
      {"transformer.wte.weight", {50257, 768}},
      {"transformer.wpe.weight", {1024, 768}},
      {"transformer.h.11.attn.c_attn.weight", {768, 2304}},
      {"transformer.h.11.attn.c_attn.bias", {2304}},
      {"transformer.h.0.mlp.c_fc.weight", {768, 3072}},
      {"transformer.h.0.mlp.c_proj.weight", {3072, 768}},
      {"transformer.ln_f.bias", {768}}};
  for (const auto& [name, shape] : of_gpt2) {
    EXPECT_EQ(gpt2.at(name), shape) << name;
  }
  const std::pair<const char*, Shape> of_llama3[] = {
      {"model.embed_tokens.weight", {128256, 4096}},
      {"model.layers.31.self_attn.q_proj.weight", {4096, 4096}},
      {"model.layers.31.self_attn.k_proj.weight", {1024, 4096}},
      {"model.layers.0.mlp.gate_proj.weight", {14336, 4096}},
      {"model.layers.0.mlp.down_proj.weight", {4096, 14336}},
      {"model.layers.0.post_attention_layernorm.weight", {4096}},
      {"lm_head.weight", {128256, 4096}}};
  for (const auto& [name, shape] : of_llama3) {
    EXPECT_EQ(llama3.at(name), shape) << name;
  }
}

TEST(PublishedNames, NumbersOfLinesMayHaveOtherForms) {
  const PublishedModel model = preset_model(nn::Preset::kLlama3B8);
  std::vector<std::string> lines = layer_lines(model);
  for (std::string& line : lines) {
    const std::string number = "rotary=500000";
    if (const std::size_t at = line.find(number); at != std::string::npos) {
      line.replace(at, number.size(), "rotary=5e5");
    }
  }
  EXPECT_NE(lines, layer_lines(model));
  EXPECT_EQ(layer_lines(published_model_of(lines, model.options.context, model.options.vocabulary)),
            layer_lines(model));
}

TEST(PublishedNames, OtherModelsAreRefusedByTheirLine) {
  std::vector<std::string> lines = layer_lines(preset_model(nn::Preset::kGpt2M124));
  lines[3] = "attention 12 norm=rms_norm name=blocks.1.attention";
  EXPECT_THAT(
      strata::test::error_of([&] { static_cast<void>(published_model_of(lines, 1024, 50257)); },
                             ExitCode::kUsage),
      testing::AllOf(testing::HasSubstr(lines[3]), testing::HasSubstr("safetensors")));
  PublishedModel model = preset_model(nn::Preset::kGpt2M124);
  model.options.positions = nn::PositionChoice::kNone;
  EXPECT_THAT(
      strata::test::error_of([&] { static_cast<void>(family_of(model)); }, ExitCode::kUsage),
      testing::AllOf(
          testing::HasSubstr("gpt2, llama, qwen2"),
          testing::HasSubstr("the layer \"embedding 768 vocabulary=50257 name=embedding\" where "
                             "gpt2 has \"embedding 768 vocabulary=50257 positions=1024")));
}

}  // namespace
}  // namespace strata::exchange::published_model_test
