#include "strata/nn/transformer.hpp"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "strata/nn/model.hpp"
#include "strata/nn/rotary_scaling.hpp"

#include "error_of.hpp"
#include "published_sizes.hpp"

namespace strata::nn::transformer_test {
namespace {

Model model_of(const TransformerOptions& options, std::int64_t shards = 1) {
  const TransformerOptions all = resolved(options);
  return Model({.layers = transformer_layers(all),
                .input_shape = Shape{all.context},
                .outputs = all.vocabulary,
                .input_kind = InputKind::kTokenIds,
                .shards = shards});
}

TEST(Transformers, HaveTheirPublishedNumberOfParameters) {
  strata::test::expect_parameter_counts(
      {{Preset::kGpt2M124, 124'439'808},          {Preset::kGpt2M355, 354'823'168},
       {Preset::kGpt2M774, 774'030'080},          {Preset::kGpt2M1558, 1'557'611'200},
       {Preset::kTinyllamaB1, 1'100'048'384},     {Preset::kLlama1B7, 6'738'415'616},
       {Preset::kLlama1B13, 13'015'864'320},      {Preset::kLlama1B33, 32'528'943'616},
       {Preset::kLlama1B65, 65'285'660'672},      {Preset::kLlama2B7, 6'738'415'616},
       {Preset::kLlama2B13, 13'015'864'320},      {Preset::kLlama2B70, 68'976'648'192},
       {Preset::kLlama3B8, 8'030'261'248},        {Preset::kLlama3B70, 70'553'706'496},
       {Preset::kLlama31B8, 8'030'261'248},       {Preset::kLlama31B70, 70'553'706'496},
       {Preset::kLlama31B405, 405'853'388'800},   {Preset::kLlama32B1, 1'235'814'400},
       {Preset::kLlama32B3, 3'212'749'824},       {Preset::kQwen25B05, 494'032'768},
       {Preset::kQwen25B15, 1'543'714'304},       {Preset::kQwen25B3, 3'085'938'688},
       {Preset::kQwen25B7, 7'615'616'512},        {Preset::kQwen25B14, 14'770'033'664},
       {Preset::kQwen25B32, 32'763'876'352},      {Preset::kQwen25B72, 72'706'203'648},
       {Preset::kQwen3B06, 596'049'920},          {Preset::kQwen3B17, 1'720'574'976},
       {Preset::kQwen3B4, 4'022'468'096},         {Preset::kQwen3B8, 8'190'735'360},
       {Preset::kQwen3B14, 14'768'307'200},       {Preset::kQwen3B32, 32'762'123'264},
       {Preset::kMistralV01B7, 7'241'732'096},    {Preset::kMistralB7, 7'248'023'552},
       {Preset::kMistralNemoB12, 12'247'782'400}, {Preset::kMistralSmall31B24, 23'572'403'200},
       {Preset::kSmollm2M135, 134'515'008},       {Preset::kSmollm2M360, 361'821'120},
       {Preset::kSmollm2B17, 1'711'376'384},      {Preset::kSmollm3B3, 3'075'098'624},
       {Preset::kGemma2B2, 2'614'341'888},        {Preset::kGemma2B9, 9'241'705'984},
       {Preset::kGemma2B27, 27'227'128'320},      {Preset::kGemma3M270, 268'098'176},
       {Preset::kGemma3B1, 999'885'952},          {Preset::kGemma3B4, 3'880'263'168},
       {Preset::kGemma3B12, 11'766'034'176},      {Preset::kGemma3B27, 27'009'346'304},
       {Preset::kOlmo2B1, 1'484'916'736},         {Preset::kOlmo2B7, 7'298'617'344},
       {Preset::kOlmo2B13, 13'716'198'400},       {Preset::kOlmo2B32, 32'234'279'936},
       {Preset::kPhi3MiniB4, 3'821'079'552},      {Preset::kPhi3MediumB14, 13'960'238'080},
       {Preset::kPhi4MiniB4, 3'836'021'760},      {Preset::kPhi4B14, 14'659'507'200},
       {Preset::kPythiaM70, 70'426'624},          {Preset::kPythiaM160, 162'322'944},
       {Preset::kPythiaM410, 405'334'016},        {Preset::kPythiaB1, 1'011'781'632},
       {Preset::kPythiaB14, 1'414'647'808},       {Preset::kPythiaB28, 2'775'208'960},
       {Preset::kPythiaB69, 6'857'302'016},       {Preset::kPythiaB12, 11'846'072'320}},
      [](Preset preset) { return model_of({.preset = preset}); });
}

TEST(Resolved, FillsInWhatThePresetDecides) {
  const TransformerOptions gpt =
      resolved({.preset = Preset::kGpt, .blocks = 2, .width = 32, .heads = 4, .context = 12});
  EXPECT_EQ(gpt.kv_heads, 4);
  EXPECT_EQ(gpt.hidden, 128);
  EXPECT_EQ(gpt.norm, NormChoice::kLayerNorm);
  EXPECT_EQ(gpt.positions, PositionChoice::kLearned);
  EXPECT_EQ(gpt.tied, Switch::kOn);
  EXPECT_EQ(gpt.vocabulary, 0);
  const TransformerOptions llama =
      resolved({.preset = Preset::kLlama, .blocks = 2, .width = 32, .heads = 4, .context = 12});
  // Two thirds of 4 x 32, up to the next multiple of 64.
  EXPECT_EQ(llama.hidden, 128);
  EXPECT_EQ(llama.rotary_base, 10000.0);
  EXPECT_EQ(llama.bias, Switch::kOff);
  EXPECT_EQ(resolved({.preset = Preset::kLlama3B8}).rotary_base, 500000.0);
  const TransformerOptions narrow = resolved({.preset = Preset::kGemma2B2, .width = 1024});
  EXPECT_EQ(narrow.family.embedding_scale, 32.0);
}

TEST(Resolved, KeepsWhatIsGiven) {
  const TransformerOptions o = resolved({.preset = Preset::kGpt2M124,
                                         .blocks = 3,
                                         .kv_heads = 4,
                                         .context = 64,
                                         .norm = NormChoice::kRmsNorm,
                                         .mlp = MlpKind::kSwiglu,
                                         .positions = PositionChoice::kNone,
                                         .bias = Switch::kOff,
                                         .tied = Switch::kOff});
  EXPECT_EQ(o.blocks, 3);
  EXPECT_EQ(o.width, 768);
  EXPECT_EQ(o.kv_heads, 4);
  EXPECT_EQ(o.context, 64);
  EXPECT_EQ(o.norm, NormChoice::kRmsNorm);
  EXPECT_EQ(o.positions, PositionChoice::kNone);
  EXPECT_EQ(o.tied, Switch::kOff);
  // 8 / 3 x 768 is a multiple of 64.
  EXPECT_EQ(o.hidden, 2048);
}

TEST(Resolved, GivingAPresetItsOwnSizesChangesNothing) {
  const TransformerOptions preset = resolved({.preset = Preset::kLlama2B7});
  EXPECT_EQ(preset.hidden, 11008);
  EXPECT_EQ(resolved({.preset = Preset::kLlama2B7, .width = 4096}), preset);
  EXPECT_EQ(resolved(preset), preset);
  const TransformerOptions nope =
      resolved({.preset = Preset::kLlama3B8, .positions = PositionChoice::kNone});
  EXPECT_EQ(resolved(nope), nope);
}

TEST(Resolved, RefusesSettingsThatThePresetDoesNotTakeByTheirName) {
  const std::vector<std::pair<TransformerOptions, std::string>> cases{
      {{.preset = Preset::kGemma2B2, .positions = PositionChoice::kLearned},
       "model.preset is gemma2-2b: model.positions = learned adds vectors to those of tokens, "
       "which this preset multiplies by 48; set rotary or none"},
      {{.preset = Preset::kGemma3B1, .norm = NormChoice::kLayerNorm},
       "model.preset is gemma3-1b: model.norm is layer_norm, but this preset's norms multiply by 1 "
       "+ weight"},
      {{.preset = Preset::kPhi4MiniB4, .heads = 48, .kv_heads = 48},
       "model.preset is phi4-mini: its model.rotary_scaling has 48 factors, but 24 pairs of a "
       "head's elements turn with model.width = 3072 and model.heads = 48; change one of them"},
      {{.preset = Preset::kPythiaM70, .heads = 128},
       "model.preset is pythia-70m: model.positions = rotary turns pairs of elements, but the "
       "share of a head that turns has 1; change model.width = 512 or model.heads = 128"},
      {{.preset = Preset::kGpt2M124, .rotary_base = 500000.0},
       "model.preset is gpt2-124m: model.rotary_base = 500000 is of rotary positions, but "
       "model.positions is learned; set model.positions = rotary"}};
  for (const auto& one : cases) {
    const std::string refusal =
        strata::test::error_of([&] { static_cast<void>(resolved(one.first)); }, ExitCode::kUsage);
    EXPECT_TRUE(refusal.starts_with(one.second)) << refusal;
  }
  for (const Preset preset : {Preset::kGemma3B1, Preset::kPhi4MiniB4, Preset::kLlama31B8}) {
    for (const PositionChoice positions : {PositionChoice::kRotary, PositionChoice::kNone}) {
      static_cast<void>(
          model_of({.preset = preset, .blocks = 2, .context = 64, .positions = positions}));
    }
  }
}

TEST(Resolved, NamesMissingSizes) {
  const auto refusal = [](const TransformerOptions& options) {
    return strata::test::error_of([&] { static_cast<void>(resolved(options)); }, ExitCode::kUsage);
  };
  EXPECT_EQ(refusal({.preset = Preset::kGpt}),
            "model.preset is gpt, which leaves model.blocks open; set it");
  EXPECT_EQ(refusal({.preset = Preset::kLlama, .blocks = 2, .width = 8, .heads = 2}),
            "model.preset is llama, which leaves model.context open; set it");
}

TEST(RotaryScalings, AreReadAndWritten) {
  for (const auto& [text, written] :
       {std::pair{"none", "none"}, std::pair{"linear:2.5", "linear:2.5"},
        std::pair{"llama3:8:1:4:8192", "llama3:8:1:4:8192"},
        std::pair{"yarn:4:32768", "yarn:4:32768:32:1"},
        std::pair{"yarn:4:32768:16:2", "yarn:4:32768:16:2"},
        std::pair{"yarn:4:32768:32:1:0.5", "yarn:4:32768:32:1:0.5"},
        std::pair{"longrope:32:4096:1.0,1.5:2,1e1", "longrope:32:4096:1,1.5:2,10"},
        std::pair{"longrope:1:2:1:2:0.5", "longrope:1:2:1:2:0.5"}}) {
    const std::optional<ops::RotaryScaling> scaling = parse_rotary_scaling(text);
    ASSERT_TRUE(scaling) << text;
    EXPECT_EQ(text_of(*scaling), written);
    EXPECT_EQ(parse_rotary_scaling(written), scaling);
  }
  EXPECT_EQ(ops::RotaryScaling({.kind = ops::RotaryScalingKind::kYarn, .factor = 4.0}).magnitude(),
            0.1 * std::log(4.0) + 1.0);
}

TEST(TransformerLayers, SpellTheBlocks) {
  const std::vector<std::string> gpt = transformer_layers(resolved({.preset = Preset::kGpt,
                                                                    .blocks = 2,
                                                                    .width = 32,
                                                                    .heads = 4,
                                                                    .context = 12,
                                                                    .dropout = 0.1}));
  EXPECT_EQ(gpt, (std::vector<std::string>{
                     "embedding 32 positions=12 dropout=0.1 name=embedding",
                     "attention 4 dropout=0.1 output_deviation=0.01 name=blocks.0.attention",
                     "mlp 128 gelu dropout=0.1 output_deviation=0.01 name=blocks.0.mlp",
                     "attention 4 dropout=0.1 output_deviation=0.01 name=blocks.1.attention",
                     "mlp 128 gelu dropout=0.1 output_deviation=0.01 name=blocks.1.mlp",
                     "layer_norm name=norm", "head name=head"}));
  const std::vector<std::string> llama = transformer_layers(resolved({.preset = Preset::kLlama,
                                                                      .blocks = 2,
                                                                      .width = 32,
                                                                      .heads = 4,
                                                                      .kv_heads = 2,
                                                                      .context = 12,
                                                                      .vocabulary = 50}));
  EXPECT_EQ(llama[0], "embedding 32 vocabulary=50 name=embedding");
  EXPECT_EQ(llama[1],
            "attention 4 kv_heads=2 rotary=10000 norm=rms_norm bias=off output_deviation=0.01 "
            "name=blocks.0.attention");
  EXPECT_EQ(llama[5], "rms_norm name=norm");
  EXPECT_EQ(llama[6], "head tied=off name=head");
}

TEST(TransformerLayers, NameTheirParameters) {
  const Model model = model_of({.preset = Preset::kLlama,
                                .blocks = 1,
                                .width = 32,
                                .heads = 4,
                                .kv_heads = 2,
                                .context = 12,
                                .vocabulary = 50});
  std::vector<std::string> names;
  for (const ParameterSpec& spec : model.parameters()) {
    names.push_back(fmt::format("{} {} {}", spec.name, spec.shape.text(), spec.split));
  }
  EXPECT_EQ(names, (std::vector<std::string>{
                       "embedding.tokens.weight 50 x 32 0", "blocks.0.attention.norm.weight 32 -1",
                       "blocks.0.attention.qkv.weight 64 x 32 0",
                       "blocks.0.attention.output.weight 32 x 32 1",
                       "blocks.0.mlp.norm.weight 32 -1", "blocks.0.mlp.up.weight 128 x 32 0",
                       "blocks.0.mlp.gate.weight 128 x 32 0", "blocks.0.mlp.down.weight 32 x 128 1",
                       "norm.weight 32 -1", "head.weight 50 x 32 0"}));
}

}  // namespace
}  // namespace strata::nn::transformer_test
